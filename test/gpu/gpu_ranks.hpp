// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>

#include <cuda_runtime_api.h>

#include "nccl.h"

#include "support/rank_memory.hpp"
#include "support/ranks.hpp"

/// Ranks on GPUs for tests through the C interface. Rank r lives on GPU r % gpus(), so that any
/// number of ranks runs on any number of GPUs.
///
/// Ranks that share a GPU wait for each other inside kernels. Threads of one process run at once
/// if the kernels fit side by side; processes take turns of some milliseconds, which is right but
/// slow. Nothing that waits for a whole device, such as cudaFree, may be called while another rank
/// of the same process still waits for this one.
namespace oriel::test {

/// GPUs of this machine. Counted in a child, because a process that has initialised CUDA cannot
/// fork ranks that use it; the first call ends the program as skipped if there is none.
int gpus();

/// Processes if each rank has a GPU of its own, else threads.
Cast natural_cast(int ranks);

/// Throws with CUDA's text unless it is cudaSuccess.
void require_cuda(cudaError_t status, const char* what);

/// Ends a wait that nothing else ends.
inline constexpr std::chrono::seconds kPatience{20};

/// The calling thread's GPU and two streams of a rank. The destructor frees nothing during an
/// exception: a kernel may still run that does not end, and the process is about to.
class RankGpu {
 public:
  explicit RankGpu(int rank);
  ~RankGpu();
  RankGpu(const RankGpu&) = delete;
  RankGpu& operator=(const RankGpu&) = delete;

  int device() const { return device_; }
  /// Makes the GPU the calling thread's.
  void enter() const;
  cudaStream_t stream(std::size_t which = 0) const { return streams_[which]; }

  /// Device memory, freed with this object. Registrable memory comes from ncclMemAlloc, other from
  /// cudaMalloc.
  std::byte* allocate(std::size_t bytes, bool registrable);
  void copy_in(void* to, const void* from, std::size_t bytes);
  void copy_out(void* to, const void* from, std::size_t bytes);

  /// Waits for `stream`: true when it is done, false after `patience`. Any error of CUDA throws.
  bool done(cudaStream_t stream, std::chrono::milliseconds patience = kPatience) const;
  /// The same; throws after kPatience, or if `comm` is not null and has an asynchronous error.
  void wait(cudaStream_t stream, ncclComm_t comm) const;

 private:
  struct Allocation {
    void* base;
    bool registrable;
  };
  int device_;
  cudaStream_t streams_[2] = {};
  std::vector<Allocation> allocations_;
};

/// ncclCommInitRank of the one rank that this player plays, or ncclCommInitRankConfig.
ncclComm_t init_rank(Players& players, const RankGpu& gpu, ncclConfig_t* config = nullptr);

/// Windows, cudaMalloc, pinned and managed memory.
Venue gpu_venue();

}  // namespace oriel::test
