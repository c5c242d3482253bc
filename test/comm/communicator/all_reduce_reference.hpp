// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "oriel/types.hpp"

#include "kernels/algorithms/reference.hpp"

/// Expected results of an all-reduce, computed element by element on one thread.
namespace oriel::test {

/// Fills `out` with one rank's elements; equal seeds give equal bytes. `inputs` is defined in
/// kernels/algorithms/reference.hpp.
void fill_elements(DataType type, Inputs inputs, std::uint64_t seed, std::byte* out,
                   std::size_t count);

/// Folds arrays[rank] as reduce.hpp does; scalars[rank] holds the bytes of that rank's scalar.
void reduce_arrays(DataType type, ReduceOp op, const std::vector<const std::byte*>& arrays,
                   const std::vector<std::uint64_t>& scalars, std::size_t count, std::byte* out);

/// Compares element `index` of `result` with a computation that shares no code with the library,
/// except the conversion of small floats. Floats are computed in long double and may differ by
/// rounding; integers must be equal. Inputs must be moderate. Returns a description of the
/// difference, or an empty string.
std::string compare_with_exact(DataType type, ReduceOp op,
                               const std::vector<const std::byte*>& arrays,
                               const std::vector<std::uint64_t>& scalars, std::size_t index,
                               const std::byte* result);

}  // namespace oriel::test
