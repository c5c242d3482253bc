// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "gpu/gpu_ranks.hpp"

namespace oriel::test {
namespace {

class GpuMemory final : public RankMemory {
 public:
  GpuMemory(int rank, std::size_t area_bytes) : gpu_(rank) {
    scalar_ = gpu_.allocate(8, false);
    areas_[0] = gpu_.allocate(area_bytes, MemoryKind::nccl_mem_alloc);
    areas_[1] = gpu_.allocate(area_bytes, MemoryKind::cuda_malloc);
    areas_[2] = gpu_.allocate(area_bytes, MemoryKind::cuda_malloc_host);
    areas_[3] = gpu_.allocate(area_bytes, MemoryKind::cuda_malloc_managed);
    staging_ = gpu_.allocate(area_bytes, MemoryKind::cuda_malloc_host);
  }

  void enter() override { gpu_.enter(); }
  std::byte* area(std::size_t kind) override { return areas_[kind]; }
  std::byte* scalar() override { return scalar_; }
  cudaStream_t stream() const override { return gpu_.stream(); }
  void write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes == 0) return;
    std::memcpy(staging_, from, bytes);
    gpu_.enter();
    gpu_.copy_in(to, staging_, bytes);
  }
  void read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    if (bytes == 0) return;
    gpu_.enter();
    gpu_.copy_out(staging_, from, bytes);
    std::memcpy(to, staging_, bytes);
  }
  void wait(ncclComm_t comm) override { gpu_.wait(stream(), comm); }

 private:
  RankGpu gpu_;
  std::byte* areas_[4] = {};
  std::byte* scalar_ = nullptr;
  std::byte* staging_ = nullptr;  // pinned, so that a copy waits for its stream only
};

}  // namespace

MemoryFactory gpu_memory_factory() {
  return {{"window", "cudaMalloc", "pinned", "managed"}, [](int rank, std::size_t area_bytes) {
            return std::unique_ptr<RankMemory>(new GpuMemory(rank, area_bytes));
          }};
}

}  // namespace oriel::test
