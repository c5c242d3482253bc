// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/plan/algorithm.hpp"

namespace oriel::kernels {

/// The most ranks of one LSA team: what the arrays of the algorithms have room for.
constexpr int most_ranks(Backend backend) {
  return backend == Backend::host ? 64 : 8;
}

}  // namespace oriel::kernels
