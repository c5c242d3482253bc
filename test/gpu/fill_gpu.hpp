// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace oriel::test {

/// Loads the kernels below, so that their first launches need not; returns a cudaError_t.
int load_filler();

/// Launches `ctas` CTAs of 1024 threads that run until *end (pinned host memory) is not zero. Each
/// CTA adds 1 to *started (device memory) when it starts. Returns a cudaError_t.
int fill_gpu(const int* end, int* started, int ctas, cudaStream_t stream);

/// Launches CTAs as fill_gpu does, each of which leaves no room for others on its multiprocessor.
int fill_multiprocessors(const int* end, int* started, int ctas, cudaStream_t stream);

/// Launches `ctas` CTAs of 1024 threads that run for about `microseconds`; returns a cudaError_t.
int fill_gpu_for(int microseconds, int ctas, cudaStream_t stream);

}  // namespace oriel::test
