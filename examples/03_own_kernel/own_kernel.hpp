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

/// Four elements: one load or store of 16 bytes, the widest that a GPU has.
struct alignas(16) Four {
  float v[4];
};

/// Elements [4 i, 4 i + 4), and as many at i + step, ... kAhead times. All loads from a rank are
/// under way before the first is used, so that their latencies overlap.
template <int kAhead>
ORIEL_DEVICE_FN void add_fours(const FusedScaleAllReduce& job, std::uint64_t i,
                               std::uint64_t step) {
  const auto ranks = static_cast<std::uint32_t>(job.comm.lsa_size);
  // Windows of neighbouring ranks lie at equal distances: a peer's address is one addition away.
  const Four* const x = reinterpret_cast<const Four*>(job.x.flat_base) + i;
  Four* const y = reinterpret_cast<Four*>(job.y.flat_base) + i;
  Four sum[kAhead] = {};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const Four* const from = oriel::device::advance_4g(x, rank * job.x.stride_4g);
    Four got[kAhead];
    for (int k = 0; k < kAhead; ++k) got[k] = from[static_cast<std::uint64_t>(k) * step];
    for (int k = 0; k < kAhead; ++k) {
      for (int e = 0; e < 4; ++e) sum[k].v[e] += got[k].v[e];
    }
  }
  for (Four& one : sum) {
    for (float& v : one.v) v = job.scale * v > 0 ? job.scale * v : 0;
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Four* const to = oriel::device::advance_4g(y, rank * job.y.stride_4g);
    for (int k = 0; k < kAhead; ++k) to[static_cast<std::uint64_t>(k) * step] = sum[k];
  }
}

/// True if y holds the result. Collective: every rank calls it with as many blocks. The last count
/// % 4 elements are computed as four, so the windows hold a multiple of 16 bytes.
template <class Group>
ORIEL_DEVICE_FN bool fused_scale_all_reduce(Group group, const FusedScaleAllReduce& job,
                                            std::uint32_t block, std::uint32_t blocks) {
  using oriel::device::WaitOutcome;
  const std::uint64_t fours = (job.count + 3) / 4;
  if (fours == 0) return true;
  if (!job.x.contains(0, fours * sizeof(Four)) || !job.y.contains(0, fours * sizeof(Four))) {
    return false;  // on all ranks alike; the loops check nothing any more
  }

  oriel::device::LsaBarrier<Group> barrier(group, job.comm, block);
  if (barrier.sync() != WaitOutcome::ready) return false;  // now every rank's x is there

  // One stretch for each block of each rank; its threads take neighbouring vectors.
  const std::uint64_t pieces = static_cast<std::uint64_t>(job.comm.lsa_size) * blocks;
  const std::uint64_t piece = static_cast<std::uint64_t>(job.comm.lsa_rank) * blocks + block;
  const std::uint64_t last = fours * (piece + 1) / pieces;
  const std::uint64_t threads = group.size();
  constexpr int kAhead = 4;
  std::uint64_t i = fours * piece / pieces + group.rank();
  for (; i + (kAhead - 1) * threads < last; i += kAhead * threads) {
    add_fours<kAhead>(job, i, threads);
  }
  for (; i < last; i += threads) add_fours<1>(job, i, threads);
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
