// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/group.hpp"

#include "kernels/algorithms/places.hpp"
#include "kernels/cuda/signatures.cuh"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels {

/// A group: the threads of a CTA with one index in the CTA's second dimension. It behaves as an
/// independent CTA on the same multiprocessor. It has its own barrier, so that a fence or a flag
/// wait of one sub-CTA does not block the other. All its threads stay until the last barrier.
struct SubCta {
  static __device__ __forceinline__ std::uint32_t rank() { return threadIdx.x; }
  static __device__ __forceinline__ std::uint32_t size() { return blockDim.x; }
  static __device__ __forceinline__ void sync() { device::arch::barrier_sync(barrier(), size()); }
  static __device__ __forceinline__ bool any(bool mine) {
    return device::arch::barrier_any(barrier(), size(), mine);
  }

  /// Returns the place among the sub-CTAs that move data.
  static __device__ __forceinline__ GridPlace place() {
    return {blockIdx.x * blockDim.y + threadIdx.y, Signatures::data_ctas() * blockDim.y};
  }

 private:
  static __device__ __forceinline__ std::uint32_t barrier() {
    return 1 + threadIdx.y;  // __syncthreads() uses barrier 0
  }
};

}  // namespace oriel::kernels
