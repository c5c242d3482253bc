// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "gpu/fill_gpu.hpp"

namespace oriel::test {
namespace {

__global__ void wait_for_word(const volatile int* end, int* started) {
  if (threadIdx.x == 0) atomicAdd(started, 1);
  while (*end == 0) __nanosleep(2000);
}

__global__ void sleep_for(int microseconds) {
  for (int i = 0; i < microseconds; ++i) __nanosleep(1000);
}

}  // namespace

int load_filler() {
  cudaFuncAttributes attributes;
  const int loaded = cudaFuncGetAttributes(&attributes, wait_for_word);
  return loaded != cudaSuccess ? loaded : cudaFuncGetAttributes(&attributes, sleep_for);
}

int fill_gpu_for(int microseconds, int ctas, cudaStream_t stream) {
  sleep_for<<<ctas, 1024, 0, stream>>>(microseconds);
  return cudaGetLastError();
}

int fill_gpu(const int* end, int* started, int ctas, cudaStream_t stream) {
  wait_for_word<<<ctas, 1024, 0, stream>>>(end, started);
  return cudaGetLastError();
}

int fill_multiprocessors(const int* end, int* started, int ctas, cudaStream_t stream) {
  // The most shared memory of a CTA, with the part that CUDA reserves for each CTA, is all that a
  // multiprocessor has.
  int device = 0, bytes = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (status == cudaSuccess) {
    status =
        cudaFuncSetAttribute(wait_for_word, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  }
  if (status != cudaSuccess) return status;
  wait_for_word<<<ctas, 1024, static_cast<std::size_t>(bytes), stream>>>(end, started);
  return cudaGetLastError();
}

}  // namespace oriel::test
