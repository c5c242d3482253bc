// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "oriel/types.hpp"

/// The arithmetic of the device headers as a GPU does it. All pointers are host memory; each call
/// copies, runs one kernel, waits, and returns a cudaError_t as int.
namespace oriel::test {

/// out[i] = the reduction of inputs[k * count + i] over k < n <= 8, with n_ranks as the divisor and
/// the scalars of premul_sum as elements.
int gpu_reduce(DataType type, ReduceOp op, const void* inputs, const void* scalars, int n,
               int n_ranks, std::size_t count, void* out);

/// The 16- and 8-bit floats: count floats to elements, singly and as pairs (count even), and back.
int gpu_narrow(DataType type, const float* in, std::size_t count, void* single, void* paired);
int gpu_widen(DataType type, const void* in, std::size_t count, float* single, float* paired);

}  // namespace oriel::test
