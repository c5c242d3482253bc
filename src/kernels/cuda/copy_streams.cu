// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/algorithms/group_copy_ops.hpp"
#include "kernels/algorithms/stream.hpp"
#include "kernels/algorithms/stream_blocks.hpp"
#include "kernels/cuda/signatures.cuh"
#include "kernels/cuda/sub_cta.cuh"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels::detail {

__global__ void __launch_bounds__(kMaxThreads, 1)
    broadcast_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  StreamAllReduce<SubCta, GroupCopyOps<SubCta>>(arguments, SubCta::place()).run();
}

template <Collective kCollective>
__global__ void __launch_bounds__(kMaxThreads, 1)
    blocks_kernel(const __grid_constant__ AllReduceArguments arguments) {
  if (Signatures::is_here()) return Signatures::exchange(arguments);
  StreamBlocks<SubCta, GroupCopyOps<SubCta>, kCollective>(arguments, SubCta::place()).run();
}

const void* copy_stream_kernel_for(Collective collective) {
  switch (collective) {
    case Collective::broadcast:
      return reinterpret_cast<const void*>(&broadcast_kernel);
    case Collective::all_gather:
      return reinterpret_cast<const void*>(&blocks_kernel<Collective::all_gather>);
    case Collective::all_to_all:
      return reinterpret_cast<const void*>(&blocks_kernel<Collective::all_to_all>);
    default:
      return nullptr;
  }
}

}  // namespace oriel::kernels::detail
