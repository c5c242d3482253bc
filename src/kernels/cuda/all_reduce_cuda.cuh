// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/device/group.hpp"

#include "kernels/algorithms/group_reduce_ops.hpp"
#include "kernels/algorithms/one_shot.hpp"
#include "kernels/algorithms/stream.hpp"
#include "kernels/algorithms/two_shot.hpp"
#include "kernels/cuda/hierarchy_cuda.cuh"
#include "kernels/cuda/signatures.cuh"
#include "kernels/cuda/sub_cta.cuh"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels::detail {

template <class T, Family kFamily, int kRanks>
__global__ void __launch_bounds__(kMaxThreads, 1)
    one_shot_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  one_shot<T, kFamily, kRanks, LineFor<T>, device::Cta>(arguments,
                                                        {blockIdx.x, Signatures::data_ctas()});
}

template <class T, Family kFamily, int kRanks>
__global__ void __launch_bounds__(kMaxThreads, 1)
    two_shot_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  two_shot<T, kFamily, kRanks, LineFor<T>, device::Cta>(arguments,
                                                        {blockIdx.x, Signatures::data_ctas()});
}

template <class T, Family kFamily, int kRanks>
__global__ void __launch_bounds__(kMaxThreads, 1)
    stream_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  using DataOps = GroupReduceOps<T, kFamily, kRanks, SubCta>;
  StreamAllReduce<SubCta, DataOps>(arguments, SubCta::place()).run();
}

template <class T, Family kFamily, int kRanks>
void fill(KernelSet& set, RankVariant variant) {
  const auto family = static_cast<std::size_t>(kFamily);
  const auto ranks = static_cast<std::size_t>(variant);
  set.kernel[0][family][ranks] =
      reinterpret_cast<const void*>(&one_shot_kernel<T, kFamily, kRanks>);
  set.kernel[1][family][ranks] =
      reinterpret_cast<const void*>(&two_shot_kernel<T, kFamily, kRanks>);
  set.kernel[2][family][ranks] = reinterpret_cast<const void*>(&stream_kernel<T, kFamily, kRanks>);
}

/// Returns the kernels of one type. Sums are compiled for 2, 4 and 8 ranks and for any number. The
/// rare families are compiled for any number only.
template <class T>
KernelSet make_kernel_set() {
  KernelSet set;
  fill<T, Family::sum, 2>(set, RankVariant::two);
  fill<T, Family::sum, 4>(set, RankVariant::four);
  fill<T, Family::sum, 8>(set, RankVariant::eight);
  fill<T, Family::sum, 0>(set, RankVariant::any);
  for (const auto variant :
       {RankVariant::two, RankVariant::four, RankVariant::eight, RankVariant::any}) {
    fill<T, Family::product, 0>(set, variant);
    fill<T, Family::extreme, 0>(set, variant);
  }
  set.hierarchy = reinterpret_cast<const void*>(&hierarchy_kernel<T>);
  return set;
}

}  // namespace oriel::kernels::detail
