// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <variant>

#include "base/bytes.hpp"
#include "net/syndrome.hpp"
#include "net/work_request.hpp"

/// What NICs say to each other: one request or response is a value that owns its bytes, so that a
/// wire may keep it, copy it or turn it into bytes of its own.
namespace oriel::net {

/// A NIC as its wire names it.
struct WireAddress {
  std::uint64_t value = 0;
  bool operator==(const WireAddress&) const = default;
};

/// Of both: `epoch` is that of the connection, so that what is still on its way from an earlier
/// life of a queue is not taken for a part of the next one.

/// One piece of an entry. `number` counts the requests of a queue without gaps: one that comes
/// twice is executed once, and one that comes too early is dropped, for its sender repeats it.
struct WireRequest {
  WireAddress from;
  std::uint32_t from_queue = 0;
  std::uint32_t to_queue = 0;
  std::uint32_t epoch = 0;
  std::uint64_t number = 0;
  WorkKind kind = WorkKind::write;  ///< write, read or atomic
  std::uint32_t key = 0;
  std::uint64_t address = 0;      ///< of the whole entry's range at the peer
  std::uint64_t bytes = 0;        ///< of the whole entry
  std::uint64_t offset = 0;       ///< of this piece in it
  std::uint32_t piece_bytes = 0;  ///< to read; to write it is payload.size()
  bool has_immediate = false;     ///< the last piece of a write that tells of itself
  std::uint32_t immediate = 0;
  AtomicWork atomic;
  /// The bytes of this piece do not come by the wire, in either direction: whoever they are for
  /// copies them from memory of the other's that it has mapped. For a write, from:
  bool direct = false;
  std::uint32_t source_key = 0;
  std::uint64_t source_address = 0;  ///< of this piece
  Bytes payload;
};

struct WireResponse {
  std::uint32_t to_queue = 0;
  std::uint32_t epoch = 0;
  std::uint64_t number = 0;
  Syndrome syndrome = Syndrome::none;
  bool not_ready = false;  ///< the peer has nowhere to put an immediate: to be repeated later
  /// The peer has not mapped, or has no more, what a direct write is to be copied from: nothing was
  /// accepted, and the bytes are to come by the wire under the same number.
  bool not_mapped = false;
  std::uint64_t old_value = 0;
  Bytes payload;  ///< what was read
};

struct WireMessage {
  std::variant<WireRequest, WireResponse> body;
};

/// How a NIC reaches others. Messages between two NICs arrive in the order in which they were
/// sent, or not at all. Owned and called by one NIC, under its lock; neither call blocks.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual WireAddress address() const = 0;  ///< this NIC's
  /// False, and the message left alone, while there is no room: to be tried again. A message to
  /// nobody is lost, as messages are.
  virtual bool send(WireAddress to, WireMessage& message) = 0;
  /// False if nothing has come.
  virtual bool receive(WireMessage& message) = 0;
  /// Nothing more is to be sent for now: what a wire has kept back to send it with more may go.
  virtual void end_turn() {}
};

}  // namespace oriel::net
