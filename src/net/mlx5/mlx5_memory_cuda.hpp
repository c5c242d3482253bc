// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/cuda_scope.hpp"
#include "net/mlx5/mlx5_memory.hpp"

namespace oriel::net {

/// Memory for kernels of one GPU. The adapter finds it by dma-buf if GPU and Linux kernel support
/// it, else by peer memory (nvidia-peermem). Nothing here waits for running kernels, except that
/// freeing memory may.
class Mlx5CudaMemory final : public Mlx5Memory {
 public:
  static Result<std::unique_ptr<Mlx5CudaMemory>> create(CUdevice device);
  ~Mlx5CudaMemory() override;
  Mlx5CudaMemory(const Mlx5CudaMemory&) = delete;
  Mlx5CudaMemory& operator=(const Mlx5CudaMemory&) = delete;

  std::size_t page_bytes() const override { return std::size_t{64} << 10; }  // page size of a GPU
  Result<std::unique_ptr<QueuePages>> allocate(std::size_t bytes) override;
  Result<std::unique_ptr<QueuePages>> allocate_on_host(std::size_t bytes) override;
  Result<Mlx5Export> export_range(const void* address, std::size_t bytes) override;
  Result<std::unique_ptr<Mlx5Mapping>> map_register(void* address, std::size_t bytes,
                                                    bool write_combining) override;
  Result<bool> gets_need_dump() override { return gets_need_dump_; }

 private:
  explicit Mlx5CudaMemory(PrimaryContext context) : context_(std::move(context)) {}
  Status query_device();

  PrimaryContext context_;
  bool has_dmabuf_ = false;
  bool gets_need_dump_ = true;
};

}  // namespace oriel::net
