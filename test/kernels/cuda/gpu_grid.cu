// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "kernels/cuda/gpu_grid.hpp"
#include "kernels/cuda/grid.cuh"

namespace oriel::test {
namespace {

__global__ void grid_kernel(GridJob job) {
  if (blockIdx.x == job.absent) return;
  kernels::Grid grid(job.barrier, job.abort);
  grid.sync();
  // Keeps a count for each CTA, since pinned memory may not support atomics.
  const auto leads = static_cast<std::uint32_t>(__syncthreads_count(grid.leads() ? 1 : 0));

  const bool gave_up = grid.any(false);
  if (threadIdx.x != 0) return;
  job.met[blockIdx.x] = gave_up ? 1 : 3;
  job.leads[blockIdx.x] = leads;
}

}  // namespace

int launch_grid(const GridJob& job, std::uint32_t ctas, void* stream) {
  grid_kernel<<<ctas, 64, 0, static_cast<cudaStream_t>(stream)>>>(job);
  return cudaGetLastError();
}

}  // namespace oriel::test
