// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/all_reduce_cuda.cuh"

namespace oriel::kernels::detail {

KernelSet kernel_set_i32() {
  return make_kernel_set<std::int32_t>();
}

}  // namespace oriel::kernels::detail
