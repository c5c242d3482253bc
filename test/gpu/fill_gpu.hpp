// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>

namespace oriel::test {

/// Loads the kernels below, which their first launches would wait for. A cudaError_t.
int load_filler();

/// `ctas` CTAs of 1024 threads that run until *end, in pinned host memory, is not zero. Each adds
/// one to *started, in device memory, when it begins. A cudaError_t.
int fill_gpu(const int* end, int* started, int ctas, cudaStream_t stream);

/// `ctas` CTAs of 1024 threads, each of which runs for about so long. A cudaError_t.
int fill_gpu_for(int microseconds, int ctas, cudaStream_t stream);

}  // namespace oriel::test
