// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/barrier.hpp"
#include "oriel/device/comm.hpp"
#include "oriel/device/group.hpp"
#include "oriel/device/window.hpp"

/// y = max(0, scale * (x of rank 0 + x of rank 1 + ...)), element by element, on every rank: an
/// all-reduce and the step that a model would run after it, in one kernel. One source for GPUs
/// (every thread of every CTA calls it) and CPUs (every thread, as a block of its own).
/// Each rank computes one share of the elements from all ranks' x and stores it into all ranks' y.
struct FusedScaleAllReduce {
  oriel::device::CommView comm;
  oriel::device::WindowView x, y;  // windows of f32 on all ranks of one node
  std::uint64_t count;             // elements, the same on all ranks
  float scale;
};

/// True if y holds the result. Collective: every rank calls it with as many blocks.
template <class Group>
ORIEL_DEVICE_FN bool fused_scale_all_reduce(Group group, const FusedScaleAllReduce& job,
                                            std::uint32_t block, std::uint32_t blocks) {
  using oriel::device::WaitOutcome;
  const std::uint64_t bytes = job.count * sizeof(float);
  if (job.count != 0 && !(job.x.contains(0, bytes) && job.y.contains(0, bytes))) {
    return false;  // on all ranks alike
  }

  oriel::device::LsaBarrier<Group> barrier(group, job.comm, block);
  if (barrier.sync() != WaitOutcome::ready) return false;  // now every rank's x is there

  const std::uint64_t ranks = static_cast<std::uint64_t>(job.comm.lsa_size);
  const std::uint64_t me = static_cast<std::uint64_t>(job.comm.lsa_rank);
  const std::uint64_t first = job.count * me / ranks;
  const std::uint64_t last = job.count * (me + 1) / ranks;
  const std::uint64_t step = std::uint64_t{blocks} * group.size();
  for (std::uint64_t i = first + block * group.size() + group.rank(); i < last; i += step) {
    const std::uint64_t at = i * sizeof(float);
    float sum = 0;
    for (std::int32_t rank = 0; rank < job.comm.lsa_size; ++rank) {
      sum += *static_cast<const float*>(job.x.lsa_peer(rank, at, sizeof(float)));
    }
    const float scaled = job.scale * sum;
    const float result = scaled > 0 ? scaled : 0;
    for (std::int32_t rank = 0; rank < job.comm.lsa_size; ++rank) {
      *static_cast<float*>(job.y.lsa_peer(rank, at, sizeof(float))) = result;
    }
  }
  return barrier.sync() == WaitOutcome::ready;  // now every rank's y is there
}

#if defined(__CUDACC__)
/// The kernel; the grid has at most job.comm.barrier_slots CTAs, all of them resident at once.
/// done[b] becomes 1 if CTA b succeeded.
__global__ void fused_scale_all_reduce_kernel(FusedScaleAllReduce job, std::uint32_t* done) {
  const bool good = fused_scale_all_reduce(oriel::device::Cta{}, job, blockIdx.x, gridDim.x);
  if (threadIdx.x == 0) done[blockIdx.x] = good ? 1 : 0;
}
#endif
