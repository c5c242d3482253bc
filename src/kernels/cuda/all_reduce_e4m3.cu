// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/all_reduce_cuda.cuh"

namespace oriel::kernels::detail {

KernelSet kernel_set_e4m3() {
  return make_kernel_set<device::e4m3>();
}

}  // namespace oriel::kernels::detail
