// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/exchange_cuda.cuh"

namespace oriel::kernels::detail {

template <bool kFar>
__global__ void __launch_bounds__(kMaxThreads, 1)
    copy_kernel(const __grid_constant__ ExchangeArguments arguments) {
  run_exchange<kFar>(arguments);
}

const void* copying_exchange() {
  return reinterpret_cast<const void*>(&copy_kernel<false>);
}
const void* far_copying_exchange() {
  return reinterpret_cast<const void*>(&copy_kernel<true>);
}

}  // namespace oriel::kernels::detail
