// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/barrier.hpp"
#include "oriel/device/comm.hpp"
#include "oriel/device/group.hpp"
#include "oriel/device/window.hpp"

/// Computes y = max(0, scale * (x of rank 0 + x of rank 1 + ...)) for each element, on every rank.
/// One kernel combines an all-reduce with the step that a model would run after it. The same source
/// runs on GPUs (called by every thread of every CTA) and on CPUs (each thread is a block of its
/// own). Each rank reads one share of the elements from all ranks' x and stores the results into
/// all ranks' y.
struct FusedScaleAllReduce {
  oriel::device::CommView comm;
  oriel::device::WindowView x, y;  // windows of f32 on all ranks of one node
  std::uint64_t count;             // elements, the same on all ranks
  float scale;
};

/// Four elements, loaded or stored in one access of 16 bytes.
struct alignas(16) Four {
  float v[4];
};

/// Processes elements [4 i, 4 i + 4), and as many at i + step, ...: kAhead vectors. Issues all
/// loads from a rank before it uses the first, so that their latencies overlap.
template <int kAhead>
ORIEL_DEVICE_FN void add_fours(const FusedScaleAllReduce& job, std::uint64_t i,
                               std::uint64_t step) {
  const auto ranks = static_cast<std::uint32_t>(job.comm.lsa_size);
  // The windows of consecutive ranks are at equal distances, so a peer's address takes one
  // addition.
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

/// Returns true if y holds the result. Collective: every rank calls it with the same number of
/// blocks. The last count % 4 elements are computed as a full vector, so the windows hold a
/// multiple of 16 bytes.
template <class Group>
ORIEL_DEVICE_FN bool fused_scale_all_reduce(Group group, const FusedScaleAllReduce& job,
                                            std::uint32_t block, std::uint32_t blocks) {
  using oriel::device::WaitOutcome;
  const std::uint64_t fours = (job.count + 3) / 4;
  if (fours == 0) return true;
  if (!job.x.contains(0, fours * sizeof(Four)) || !job.y.contains(0, fours * sizeof(Four))) {
    return false;  // on all ranks alike; the loops check no bounds
  }

  oriel::device::LsaBarrier<Group> barrier(group, job.comm, block);
  if (barrier.sync() != WaitOutcome::ready) return false;  // every rank's x is complete

  // Each block of each rank has one contiguous share; its threads access neighbouring vectors.
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
  return barrier.sync() == WaitOutcome::ready;  // every rank's y is complete
}

#if defined(__CUDACC__)
/// Runs with at most job.comm.barrier_slots CTAs, all resident at once. Sets done[b] to 1 if CTA b
/// succeeded, else to 0.
__global__ void fused_scale_all_reduce_kernel(FusedScaleAllReduce job, std::uint32_t* done) {
  const bool good = fused_scale_all_reduce(oriel::device::Cta{}, job, blockIdx.x, gridDim.x);
  if (threadIdx.x == 0) done[blockIdx.x] = good ? 1 : 0;
}
#endif
