// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/bytes.hpp"

/// What an entry of a send queue asks for, taken apart: plain values in the host's byte order.
namespace oriel::net {

enum class WorkKind : std::uint8_t { nop, write, read, atomic, dump };

/// An atomic operation on a word of `bytes` (4 or 8) bytes; operands stand in the low bits.
struct AtomicWork {
  enum class Form : std::uint8_t {
    add,   ///< in fields: no carry leaves a bit whose `boundary` is 1
    swap,  ///< where memory equals `compare` in `compare_mask`, bits of `swap_mask` from `operand`
  };
  Form form = Form::add;
  std::uint8_t bytes = 8;
  std::uint64_t operand = 0;
  std::uint64_t boundary = 0;
  std::uint64_t compare = 0;
  std::uint64_t swap_mask = 0;
  std::uint64_t compare_mask = 0;
};

/// Which earlier entries have to be answered before this one begins.
enum class FenceMode : std::uint8_t { none, reads_and_atomics, everything };

struct WorkRequest {
  WorkKind kind = WorkKind::nop;
  std::uint8_t opcode = 0;   ///< as it stands in the entry
  std::uint64_t index = 0;   ///< of the entry's first block
  std::uint32_t blocks = 1;  ///< that it takes in the ring
  FenceMode fence = FenceMode::none;
  bool signalled = false;
  bool has_immediate = false;
  std::uint32_t immediate = 0;
  std::uint64_t remote_address = 0;
  std::uint32_t remote_key = 0;
  bool is_inline = false;  ///< a write of inline_bytes, otherwise of the local range
  Bytes inline_bytes;
  std::uint64_t local_address = 0;
  std::uint32_t local_key = 0;
  std::uint64_t bytes = 0;  ///< to move; of an atomic its width
  AtomicWork atomic;
};

}  // namespace oriel::net
