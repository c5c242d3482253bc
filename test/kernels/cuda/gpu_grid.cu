// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "kernels/cuda/gpu_grid.hpp"
#include "kernels/cuda/grid.cuh"

namespace oriel::test {
namespace {

constexpr int kThreads = 64;

__global__ void grid_kernel(const __grid_constant__ GridJob job) {
  const bool is_absent = blockIdx.x == job.absent;
  if (is_absent && job.barriers == 0) return;
  kernels::Grid grid(job.barrier, job.wait);
  grid.sync();
  if (is_absent) return;
  // Keeps a count for each CTA, since pinned memory may not support atomics.
  const auto leads = static_cast<std::uint32_t>(__syncthreads_count(grid.leads() ? 1 : 0));

  const bool gave_up = grid.any(false);
  if (threadIdx.x != 0) return;
  job.met[blockIdx.x] = gave_up ? 1 : 3;
  job.leads[blockIdx.x] = leads;
}

}  // namespace

int launch_grid(const GridJob& job, std::uint32_t ctas, void* stream) {
  grid_kernel<<<ctas, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(job);
  return cudaGetLastError();
}

int ctas_per_multiprocessor() {
  int ctas = 0;
  const cudaError_t status =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, grid_kernel, kThreads, 0);
  return status == cudaSuccess ? ctas : 0;
}

}  // namespace oriel::test
