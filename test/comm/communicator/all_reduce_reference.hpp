// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "oriel/types.hpp"

#include "kernels/algorithms/reference.hpp"

/// What an all-reduce must give, computed by one thread, element by element.
namespace oriel::test {

/// One rank's elements: the same bytes for the same seed. `inputs` as in
/// kernels/algorithms/reference.hpp.
void fill_elements(DataType type, Inputs inputs, std::uint64_t seed, std::byte* out,
                   std::size_t count);

/// The fold of reduce.hpp over arrays[rank]; scalars[rank] holds the bytes of that rank's scalar.
void reduce_arrays(DataType type, ReduceOp op, const std::vector<const std::byte*>& arrays,
                   const std::vector<std::uint64_t>& scalars, std::size_t count, std::byte* out);

/// Compares element `index` of `result` with a computation that shares nothing with the library's:
/// long double for floats, within what their roundings allow; integers exactly. What is wrong, or
/// an empty string. Inputs must be moderate.
std::string compare_with_exact(DataType type, ReduceOp op,
                               const std::vector<const std::byte*>& arrays,
                               const std::vector<std::uint64_t>& scalars, std::size_t index,
                               const std::byte* result);

}  // namespace oriel::test
