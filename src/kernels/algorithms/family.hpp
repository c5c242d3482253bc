// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/types.hpp"

namespace oriel::kernels {

/// Groups operations that share one kernel. A run-time value, uniform across threads, selects the
/// operation inside a family. The choice costs little beside the memory accesses and keeps the
/// number of kernels small.
enum class Family : std::uint8_t {
  sum,      ///< sum, average, pre-multiplied sum
  product,  ///< product
  extreme,  ///< minimum, maximum
};

constexpr Family family_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::prod:
      return Family::product;
    case ReduceOp::min:
    case ReduceOp::max:
      return Family::extreme;
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premul_sum:
      break;
  }
  return Family::sum;
}

}  // namespace oriel::kernels
