// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "net/wire/wire.hpp"

/// Encoding of the messages between NICs, for wires that leave the process. A message is a head and
/// its payload without gaps. All numbers are little-endian:
///
///     u8 version, u8 type, u8 kind or syndrome, u8 flags, u32 to_queue, u32 epoch,
///     u32 payload bytes, u64 number
///     request:  u64 from, u32 from_queue, u32 key, u64 address, u64 bytes, u64 offset,
///               u32 piece_bytes, u32 immediate
///       atomic: u32 form, u32 width, u64 operand, boundary, compare, swap_mask, compare_mask
///       write that is copied: u64 source address, u32 source key, u32 0
///       rendezvous write: u64 source address, u64 source key
///     response: u64 old_value
///
/// A message has exactly one encoding: encode_message() restores what decode_message() has
/// accepted. Thread-safe.
namespace oriel::net {

inline constexpr std::size_t kWireHeadBytesMost = 120;
/// Limit of a whole message: the largest head and the largest piece of a WQE.
inline constexpr std::size_t kWireMessageBytesMost = kWireHeadBytesMost + (std::size_t{4} << 20);

/// Encodes the head alone, for a wire that sends the payload from where it lies.
Bytes encode_head(const WireMessage& message);
const Payload& payload_of(const WireMessage& message);
Payload& payload_of(WireMessage& message);
/// Encodes head and payload, one behind the other.
Bytes encode_message(const WireMessage& message);

/// Decodes a message of exactly these bytes. Returns ErrorCode::remote, naming field and value, for
/// anything that encode_message() does not make of a NIC's message. Keys and ranges are checked by
/// the NIC, not here.
Result<WireMessage> decode_message(ByteView bytes);

/// A message without its payload, for a wire that takes the payload from where it lies.
struct WireHead {
  WireMessage message;
  std::size_t bytes = 0;          ///< bytes of the head
  std::size_t payload_bytes = 0;  ///< bytes that follow the head
};
/// Decodes the head of a message of `message_bytes`. `beginning` has the first kWireHeadBytesMost
/// bytes at least, or the whole message. Errors are those of decode_message().
Result<WireHead> decode_head(ByteView beginning, std::size_t message_bytes);

}  // namespace oriel::net
