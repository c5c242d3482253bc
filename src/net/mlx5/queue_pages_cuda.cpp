// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/queue_pages_cuda.hpp"

#include <cstring>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/cuda_table.hpp"
#include "base/try.hpp"

namespace oriel::net {
namespace {

/// Memory of the GPU.
class NearPages final : public QueuePages {
 public:
  NearPages(CUcontext context, CUdeviceptr allocation, std::size_t page, std::size_t bytes)
      : context_(context), allocation_(allocation) {
    user_ = own_ = reinterpret_cast<std::byte*>(round_up(allocation, page));
    bytes_ = bytes;
  }
  NearPages(const NearPages&) = delete;
  NearPages& operator=(const NearPages&) = delete;
  ~NearPages() override {
    const auto scope = CudaScope::enter(context_);
    static_cast<void>(cuda().mem_free(allocation_));
  }
  Status write(std::size_t offset, ByteView from) override {
    ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_));
    CUstream stream = nullptr;
    const std::string what = fmt::format("writing {} bytes of a queue", from.size());
    // Uses the copy engine, so that the copy need not wait for running kernels.
    ORIEL_CHECK(cuda_status(what, cuda().stream_create(&stream, CU_STREAM_NON_BLOCKING)));
    CUresult status = cuda().memcpy_h_to_d_async(reinterpret_cast<CUdeviceptr>(own_ + offset),
                                                 from.data(), from.size(), stream);
    if (status == CUDA_SUCCESS) status = cuda().stream_synchronize(stream);
    const CUresult ended = cuda().stream_destroy(stream);
    return cuda_status(what, status != CUDA_SUCCESS ? status : ended);
  }

 private:
  CUcontext context_;
  CUdeviceptr allocation_;
};

/// Pinned memory of the host.
class PinnedPages final : public QueuePages {
 public:
  PinnedPages(CUcontext context, void* own, CUdeviceptr user, std::size_t bytes)
      : context_(context) {
    own_ = static_cast<std::byte*>(own);
    user_ = reinterpret_cast<std::byte*>(user);
    bytes_ = bytes;
  }
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;
  ~PinnedPages() override {
    const auto scope = CudaScope::enter(context_);
    static_cast<void>(cuda().mem_free_host(own_));
  }
  Status write(std::size_t offset, ByteView from) override {
    std::memcpy(own_ + offset, from.data(), from.size());
    return {};
  }

 private:
  CUcontext context_;
};

}  // namespace

Result<std::unique_ptr<QueuePages>> allocate_gpu_pages(CUcontext context, std::size_t page,
                                                       std::size_t bytes) {
  ORIEL_TRY(const CudaScope scope, CudaScope::enter(context));
  CUdeviceptr allocation = 0;
  ORIEL_CHECK(cuda_status(fmt::format("allocating {} bytes for a queue", bytes),
                          cuda().mem_alloc(&allocation, bytes + page)));
  return std::unique_ptr<QueuePages>(std::make_unique<NearPages>(context, allocation, page, bytes));
}

Result<std::unique_ptr<QueuePages>> allocate_pinned_pages(CUcontext context, std::size_t bytes) {
  ORIEL_TRY(const CudaScope scope, CudaScope::enter(context));
  void* own = nullptr;
  ORIEL_CHECK(cuda_status(
      fmt::format("pinning {} bytes for a queue", bytes),
      cuda().mem_host_alloc(&own, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)));
  CUdeviceptr user = 0;
  const CUresult status = cuda().mem_host_get_device_pointer(&user, own, 0);
  std::unique_ptr<QueuePages> pages = std::make_unique<PinnedPages>(context, own, user, bytes);
  ORIEL_CHECK(cuda_status("mapping pinned memory of a queue", status));
  std::memset(own, 0, bytes);
  return pages;
}

Result<std::unique_ptr<CudaQueuePages>> CudaQueuePages::create(CUdevice device) {
  ORIEL_TRY(PrimaryContext context, PrimaryContext::retain(device));
  return std::unique_ptr<CudaQueuePages>(new CudaQueuePages(std::move(context)));
}

}  // namespace oriel::net
