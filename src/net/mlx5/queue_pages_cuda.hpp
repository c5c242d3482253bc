// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "oriel/error.hpp"

#include "base/cuda_scope.hpp"
#include "net/queue/queue_pages.hpp"

namespace oriel::net {

/// Allocates memory of the context's GPU, aligned to `page`. Freeing it may wait for running
/// kernels.
Result<std::unique_ptr<QueuePages>> allocate_gpu_pages(CUcontext context, std::size_t page,
                                                       std::size_t bytes);
/// Allocates zeroed host memory, pinned and mapped for all GPUs. Freeing it may wait for running
/// kernels.
Result<std::unique_ptr<QueuePages>> allocate_pinned_pages(CUcontext context, std::size_t bytes);

/// Memory for queues that kernels of one GPU fill and a software NIC drains.
class CudaQueuePages final : public QueuePagesSource {
 public:
  static Result<std::unique_ptr<CudaQueuePages>> create(CUdevice device);
  Result<std::unique_ptr<QueuePages>> allocate(std::size_t bytes) override {
    return allocate_gpu_pages(context_.get(), 512, bytes);
  }
  Result<std::unique_ptr<QueuePages>> allocate_on_host(std::size_t bytes) override {
    return allocate_pinned_pages(context_.get(), bytes);
  }

 private:
  explicit CudaQueuePages(PrimaryContext context) : context_(std::move(context)) {}
  PrimaryContext context_;
};

}  // namespace oriel::net
