// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "own_kernel.hpp"

/// Computes the result of fused_scale_all_reduce() with the same barriers and nearly the same
/// shares, for comparison. The loop is straightforward: one element at a time, with a check of each
/// address.
template <class Group>
ORIEL_DEVICE_FN bool plain_scale_all_reduce(Group group, const FusedScaleAllReduce& job,
                                            std::uint32_t block, std::uint32_t blocks) {
  using oriel::device::WaitOutcome;
  const std::int32_t ranks = job.comm.lsa_size;
  const std::uint64_t pieces = static_cast<std::uint64_t>(ranks) * blocks;
  const std::uint64_t piece = static_cast<std::uint64_t>(job.comm.lsa_rank) * blocks + block;
  oriel::device::LsaBarrier<Group> barrier(group, job.comm, block);
  if (barrier.sync() != WaitOutcome::ready) return false;
  bool inside = true;
  for (std::uint64_t i = job.count * piece / pieces + group.rank();
       inside && i < job.count * (piece + 1) / pieces; i += group.size()) {
    float sum = 0;
    for (std::int32_t rank = 0; rank < ranks && inside; ++rank) {
      const auto* from = static_cast<const float*>(job.x.lsa_peer(rank, 4 * i, 4));
      inside = from != nullptr;
      if (inside) sum += *from;
    }
    const float result = job.scale * sum > 0 ? job.scale * sum : 0;
    for (std::int32_t rank = 0; rank < ranks && inside; ++rank) {
      auto* to = static_cast<float*>(job.y.lsa_peer(rank, 4 * i, 4));
      inside = to != nullptr;
      if (inside) *to = result;
    }
  }
  return barrier.sync() == WaitOutcome::ready && inside;
}

#if defined(__CUDACC__)
__global__ void plain_scale_all_reduce_kernel(FusedScaleAllReduce job, std::uint32_t* done) {
  const bool good = plain_scale_all_reduce(oriel::device::Cta{}, job, blockIdx.x, gridDim.x);
  if (threadIdx.x == 0) done[blockIdx.x] = good ? 1 : 0;
}
#endif
