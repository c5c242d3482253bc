// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/exchange_cuda.cuh"

namespace oriel::kernels::detail {

template <ExchangeForm kForm>
__global__ void __launch_bounds__(kMaxThreads, 1)
    exchange_kernel(const __grid_constant__ ExchangeArguments arguments) {
  run_exchange<kForm>(arguments);
}

const void* exchange_kernel_for(ExchangeForm form) {
  switch (form) {
    case ExchangeForm::packets:
      return reinterpret_cast<const void*>(&exchange_kernel<ExchangeForm::packets>);
    case ExchangeForm::near:
      return reinterpret_cast<const void*>(&exchange_kernel<ExchangeForm::near>);
    case ExchangeForm::wide:
      return reinterpret_cast<const void*>(&exchange_kernel<ExchangeForm::wide>);
    case ExchangeForm::one_gpu:
      return reinterpret_cast<const void*>(&exchange_kernel<ExchangeForm::one_gpu>);
    default:
      return reinterpret_cast<const void*>(&exchange_kernel<ExchangeForm::any>);
  }
}

}  // namespace oriel::kernels::detail
