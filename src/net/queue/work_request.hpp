// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/bytes.hpp"

/// A decoded WQE: plain values in the host's byte order.
namespace oriel::net {

enum class WorkKind : std::uint8_t { nop, write, read, atomic, dump };

/// An atomic operation on a word of `bytes` (4 or 8) bytes; operands are in the low bits.
struct AtomicWork {
  enum class Form : std::uint8_t {
    add,   ///< by fields: no carry leaves a bit whose `boundary` is 1
    swap,  ///< if memory equals `compare` in `compare_mask`: sets `swap_mask` bits from `operand`
  };
  Form form = Form::add;
  std::uint8_t bytes = 8;
  std::uint64_t operand = 0;
  std::uint64_t boundary = 0;
  std::uint64_t compare = 0;
  std::uint64_t swap_mask = 0;
  std::uint64_t compare_mask = 0;
};

/// Earlier WQEs that have to be answered before this WQE starts.
enum class FenceMode : std::uint8_t { none, reads_and_atomics, everything };

struct WorkRequest {
  WorkKind kind = WorkKind::nop;
  std::uint8_t opcode = 0;   ///< opcode of the WQE
  std::uint64_t index = 0;   ///< index of the WQE's first WQEBB
  std::uint32_t wqebbs = 1;  ///< WQEBBs in the ring
  FenceMode fence = FenceMode::none;
  bool signalled = false;
  bool has_immediate = false;
  std::uint32_t immediate = 0;
  std::uint64_t remote_address = 0;
  std::uint32_t rkey = 0;
  bool is_inline = false;  ///< a write of inline_bytes instead of the local range
  Bytes inline_bytes;
  std::uint64_t local_address = 0;
  std::uint32_t lkey = 0;
  std::uint64_t bytes = 0;  ///< to transfer; for an atomic, its width
  AtomicWork atomic;
};

}  // namespace oriel::net
