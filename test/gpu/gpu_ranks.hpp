// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>

#include <cuda_runtime_api.h>

#include "nccl.h"

#include "support/rank_memory.hpp"
#include "support/ranks.hpp"

/// Ranks on GPUs for tests through the C interface. Rank r uses GPU r % gpus(), so that any number
/// of ranks runs on any number of GPUs.
///
/// Ranks that share a GPU wait for each other inside kernels. Kernels of threads of one process run
/// concurrently if they fit on the GPU together. Processes get time slices of about 2 ms in turn,
/// which is correct but slow. While another rank of the same process waits for this rank, do not
/// call a function that waits for the whole device, such as cudaFree.
namespace oriel::test {

/// Returns the number of GPUs. Counts them in a child process, because a process that has
/// initialised CUDA cannot fork ranks that use CUDA. If there is no GPU, the first call ends the
/// program as skipped.
int gpus();

/// Returns processes if each rank has a GPU of its own, else threads.
LaunchMode natural_cast(int ranks);

/// Throws with CUDA's error text unless `status` is cudaSuccess.
void require_cuda(cudaError_t status, const char* what);

/// Timeout of waits in these tests.
inline constexpr std::chrono::seconds kTimeout{20};

/// The function that allocates a buffer. Windows need memory of ncclMemAlloc.
enum class MemoryKind {
  nccl_mem_alloc,
  cuda_malloc,
  cuda_malloc_async,
  cuda_host_alloc,
  cuda_malloc_host,
  cuda_malloc_managed
};
const char* name_of(MemoryKind kind);

/// GPU, two streams and memory of a rank. During an exception the destructor frees nothing:
/// a kernel may still hang, and the process is about to end.
class RankGpu {
 public:
  explicit RankGpu(int rank);
  ~RankGpu();
  RankGpu(const RankGpu&) = delete;
  RankGpu& operator=(const RankGpu&) = delete;

  int device() const { return device_; }
  /// Makes the GPU the calling thread's current device.
  void enter() const;
  cudaStream_t stream(std::size_t which = 0) const { return streams_[which]; }

  /// Allocates memory that the GPU can read and write; the memory is freed with this object.
  std::byte* allocate(std::size_t bytes, MemoryKind kind);
  /// Allocates registrable memory by ncclMemAlloc, and other memory by cudaMalloc.
  std::byte* allocate(std::size_t bytes, bool registrable) {
    return allocate(bytes, registrable ? MemoryKind::nccl_mem_alloc : MemoryKind::cuda_malloc);
  }
  void copy_in(void* to, const void* from, std::size_t bytes);
  void copy_out(void* to, const void* from, std::size_t bytes);

  /// Waits for `stream`; returns false if it is not done after `timeout`. Throws on a CUDA error.
  bool done(cudaStream_t stream, std::chrono::milliseconds timeout = kTimeout) const;
  /// Waits for `stream`. Throws after kTimeout, on a CUDA error, and on an asynchronous error of
  /// `comm` (may be null).
  void wait(cudaStream_t stream, ncclComm_t comm) const;

 private:
  struct Allocation {
    void* base;
    MemoryKind kind;
  };
  int device_;
  cudaStream_t streams_[2] = {};
  std::vector<Allocation> allocations_;
};

/// Initialises the communicator of the first rank of `test_ranks`, by ncclCommInitRank without
/// `config`, else by ncclCommInitRankConfig.
ncclComm_t init_rank(TestRanks& test_ranks, const RankGpu& gpu, ncclConfig_t* config = nullptr);

/// Returns memory of four kinds: ncclMemAlloc (for windows), cudaMalloc, pinned, managed.
MemoryFactory gpu_memory_factory();

}  // namespace oriel::test
