// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "oriel/types.hpp"

/// Runs the arithmetic of the device headers on a GPU. All pointers are host memory. Each call
/// copies its inputs, runs one kernel, waits for it, and returns a cudaError_t as int.
namespace oriel::test {

/// Sets out[i] to the reduction of inputs[k * count + i] over k < n, where n <= 8. `n_ranks` is the
/// divisor of an average. `scalars` has an element for each k, for premul_sum.
int gpu_reduce(DataType type, ReduceOp op, const void* inputs, const void* scalars, int n,
               int n_ranks, std::size_t count, void* out);

/// Converts `count` floats (an even number) to a 16- or 8-bit type and back, singly and as pairs.
int gpu_narrow(DataType type, const float* in, std::size_t count, void* single, void* paired);
int gpu_widen(DataType type, const void* in, std::size_t count, float* single, float* paired);

}  // namespace oriel::test
