// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/types.hpp"

#include "kernels/plan/collective.hpp"

namespace oriel::comm {

/// Arguments of one collective, as passed on by an API function.
struct CollectiveRequest {
  kernels::Collective collective = kernels::Collective::all_reduce;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;  ///< elements per block if a buffer holds a block per rank; otherwise of
                          ///< the whole buffer
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  int root = 0;                          ///< used if has_root()
  std::uint64_t scalar_bits = 0;         ///< premul_sum: this rank's scalar, or
  const void* scalar_pointer = nullptr;  ///< device address of that scalar
  void* stream = nullptr;
};

/// One send or receive.
struct PointToPointRequest {
  bool is_send = true;
  void* data = nullptr;  ///< only read by a send
  std::size_t count = 0;
  DataType type = DataType::u8;
  int peer = 0;  ///< world rank
  void* stream = nullptr;
};

/// Numbers of sends and receives in one exchange.
struct PointToPointCounts {
  std::uint32_t sends = 0;
  std::uint32_t receives = 0;
};

}  // namespace oriel::comm
