// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/plan/algorithm.hpp"

namespace oriel::kernels {

/// Returns the largest number of ranks of one LSA team: the capacity of the algorithms' arrays.
constexpr int most_ranks(Backend backend) {
  return backend == Backend::host ? 64 : 8;
}

}  // namespace oriel::kernels
