// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/algorithms/one_shot_blocks.hpp"
#include "kernels/algorithms/two_shot_broadcast.hpp"
#include "kernels/cuda/signatures.cuh"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels::detail {
namespace {

template <class Line, int kRanks, Collective kCollective>
__global__ void __launch_bounds__(kMaxThreads, 1)
    block_lines_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  one_shot_blocks<Line, kRanks, kCollective, device::Cta>(arguments,
                                                          {blockIdx.x, Signatures::data_ctas()});
}

template <class Line, int kRanks>
__global__ void __launch_bounds__(kMaxThreads, 1)
    broadcast_lines_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  two_shot_broadcast<Line, kRanks, device::Cta>(arguments, {blockIdx.x, Signatures::data_ctas()});
}

template <class Line, int kRanks>
const void* kernel_of(Collective collective) {
  if (collective == Collective::broadcast) {
    return reinterpret_cast<const void*>(&broadcast_lines_kernel<Line, kRanks>);
  }
  if (collective == Collective::all_gather) {
    return reinterpret_cast<const void*>(&block_lines_kernel<Line, kRanks, Collective::all_gather>);
  }
  return reinterpret_cast<const void*>(&block_lines_kernel<Line, kRanks, Collective::all_to_all>);
}

template <template <class> class Line>
const void* kernel_in(Collective collective, RankVariant ranks, bool in_words) {
  if (!in_words) return kernel_of<Line<std::uint8_t>, 0>(collective);
  switch (ranks) {
    case RankVariant::two:
      return kernel_of<Line<std::uint32_t>, 2>(collective);
    case RankVariant::four:
      return kernel_of<Line<std::uint32_t>, 4>(collective);
    case RankVariant::eight:
      return kernel_of<Line<std::uint32_t>, 8>(collective);
    default:
      return kernel_of<Line<std::uint32_t>, 0>(collective);
  }
}

}  // namespace

const void* copy_lines_kernel_for(Collective collective, RankVariant ranks, CopyLines lines) {
  return lines.escaped ? kernel_in<EscapedLine>(collective, ranks, lines.in_words)
                       : kernel_in<FlaggedLine>(collective, ranks, lines.in_words);
}

}  // namespace oriel::kernels::detail
