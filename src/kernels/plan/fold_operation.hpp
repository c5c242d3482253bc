// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/types.hpp"

namespace oriel::kernels {

/// How the elements of all ranks are combined. Senders of a pre-multiplied sum scale what they
/// send.
struct FoldOperation {
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t scalar_bits = 0;         ///< premul_sum: the bytes of this rank's scalar,
  const void* scalar_pointer = nullptr;  ///< or where the device reads them
};

}  // namespace oriel::kernels
