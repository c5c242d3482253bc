// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/algorithms/stream.hpp"
#include "kernels/algorithms/stream_blocks.hpp"
#include "kernels/cuda/copy_mover_cuda.cuh"
#include "kernels/cuda/signatures.cuh"
#include "kernels/cuda/sub_cta.cuh"
#include "kernels/plan/kernel_set.hpp"
#include "kernels/plan/most_ranks.hpp"

namespace oriel::kernels::detail {

template <int kMostRanks>
__global__ void __launch_bounds__(kMaxThreads, 1)
    broadcast_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  StreamAllReduce<SubCta, CudaCopyMover<SubCta, kMostRanks>>(arguments, SubCta::place()).run();
}

template <Collective kCollective, int kMostRanks>
__global__ void __launch_bounds__(kMaxThreads, 1)
    blocks_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  using Mover = CudaCopyMover<SubCta, kMostRanks>;
  StreamBlocks<SubCta, Mover, kCollective>(arguments, SubCta::place()).run();
}

namespace {

template <int kMostRanks>
const void* kernel_of(Collective collective) {
  switch (collective) {
    case Collective::broadcast:
      return reinterpret_cast<const void*>(&broadcast_kernel<kMostRanks>);
    case Collective::all_gather:
      return reinterpret_cast<const void*>(&blocks_kernel<Collective::all_gather, kMostRanks>);
    case Collective::all_to_all:
      return reinterpret_cast<const void*>(&blocks_kernel<Collective::all_to_all, kMostRanks>);
    default:
      return nullptr;
  }
}

}  // namespace

const void* copy_stream_kernel_for(Collective collective, int ranks) {
  return ranks <= 4 ? kernel_of<4>(collective) : kernel_of<most_ranks(Backend::cuda)>(collective);
}

}  // namespace oriel::kernels::detail
