// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "gpu_peers/copy_kernel.hpp"

namespace oriel::bench {
namespace {

constexpr unsigned kThreads = 512;
constexpr int kUnroll = 8;

__global__ void __launch_bounds__(kThreads, 1)
    copy_packs(uint4* __restrict__ to, const uint4* __restrict__ from, std::size_t packs) {
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * kThreads;
  std::size_t at = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (; at + (kUnroll - 1) * threads < packs; at += kUnroll * threads) {
    uint4 values[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) values[i] = __ldcs(from + at + i * threads);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) to[at + i * threads] = values[i];
  }
  for (; at < packs; at += threads) to[at] = from[at];
}

}  // namespace

cudaError_t copy_by_ctas(void* to, const void* from, std::size_t packs, unsigned ctas,
                         cudaStream_t stream) {
  copy_packs<<<ctas, kThreads, 0, stream>>>(static_cast<uint4*>(to),
                                            static_cast<const uint4*>(from), packs);
  return cudaGetLastError();
}

}  // namespace oriel::bench
