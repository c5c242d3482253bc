// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/algorithms/stream.hpp"
#include "kernels/cuda/broadcast_cuda.cuh"
#include "kernels/cuda/signatures.cuh"
#include "kernels/cuda/sub_cta.cuh"
#include "kernels/plan/kernel_set.hpp"
#include "kernels/plan/most_ranks.hpp"

namespace oriel::kernels::detail {

template <int kMostRanks>
__global__ void __launch_bounds__(kMaxThreads, 1)
    broadcast_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  StreamAllReduce<SubCta, BroadcastMover<SubCta, kMostRanks>>(arguments, SubCta::place()).run();
}

const void* broadcast_kernel_for(int ranks) {
  return ranks <= 4 ? reinterpret_cast<const void*>(&broadcast_kernel<4>)
                    : reinterpret_cast<const void*>(&broadcast_kernel<most_ranks(Backend::cuda)>);
}

}  // namespace oriel::kernels::detail
