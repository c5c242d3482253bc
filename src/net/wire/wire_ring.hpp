// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "oriel/device/doorbell.hpp"
#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/fd.hpp"
#include "base/shared_memory.hpp"
#include "net/wire/wire.hpp"
#include "net/wire/wire_format.hpp"

/// A wire between the NICs of processes of one machine: for each direction of each pair a ring of
/// bytes in a sealed memfd, with one writer and one reader.
///
/// The memory has a header page, in which the writer counts the bytes that it has written and the
/// reader, on a cache line of its own, those that it has taken, both without end; behind it are the
/// bytes. A record is its length in 4 bytes, the message, and padding to 8 bytes; it may go round
/// the end of the ring.
///
/// Each side keeps its own counter to itself and believes of the other's only what can be: a reader
/// takes nothing that goes beyond what was written or a ring's size, and looks at a message's head
/// only in a copy of its own. A payload, which nobody interprets, is lent from the ring to whoever
/// stores it. What a hostile or broken peer writes ends in an error, never outside the ring.
namespace oriel::net {

/// Bytes of the memfd for a ring of `ring_bytes`, a power of two.
std::size_t ring_memory_bytes(std::size_t ring_bytes);
/// The longest message that such a ring takes: so long that two fit.
std::size_t ring_message_bytes_most(std::size_t ring_bytes);

/// The writing end. Move-only, not thread-safe.
class RingWriter {
 public:
  /// `memory` has ring_memory_bytes(ring_bytes).
  RingWriter(SharedMapping memory, std::size_t ring_bytes);
  /// One message of two parts; false if there is no room now. ErrorCode::remote if the reader's
  /// counter cannot be, invalid_argument for a message that is too long or empty.
  Result<bool> write(ByteView head, ByteView payload);

 private:
  void copy_in(ByteView bytes);

  SharedMapping memory_;
  std::size_t ring_bytes_;
  std::uint64_t written_ = 0;
  std::uint64_t taken_ = 0;  // by the reader, as last seen
};

/// The reading end. Move-only, not thread-safe.
class RingReader {
 public:
  RingReader(SharedMapping memory, std::size_t ring_bytes);
  /// The length of the next message; 0 if there is none. ErrorCode::remote if the writer's counter
  /// or the length cannot be.
  Result<std::size_t> begin();
  /// Appends some of the message's bytes to `to`. The writer may change them at any time, so what
  /// is looked at is what was copied, and copied once.
  void copy_out(std::size_t from, std::size_t count, Bytes& to) const;
  /// Some of the message's bytes where they lie, until end().
  Payload lend(std::size_t from, std::size_t count) const;
  /// Gives the message's room back.
  void end();

 private:
  SharedMapping memory_;
  std::size_t ring_bytes_;
  std::uint64_t taken_ = 0;
  std::uint32_t length_ = 0;  // of the message that was begun
};

/// What wakes the thread of a NIC: a device::Doorbell in a memfd of its own, which all its peers
/// map. They can write it at will, so whoever sleeps on it does so for a bounded time.
class RingBell {
 public:
  static constexpr std::size_t kMemoryBytes = 4096;
  explicit RingBell(SharedMapping memory) : memory_(std::move(memory)) {}
  device::Doorbell& doorbell() const {
    return *reinterpret_cast<device::Doorbell*>(memory_.data());
  }

 private:
  SharedMapping memory_;
};

/// The end of one NIC, with a lane to each of its peers. A lane on which something was received
/// that cannot be is dead: nothing is received there any more, what is sent is lost, and failure()
/// names the peer. That a peer has died a ring does not show; who has made the connection sees to
/// that.
/// Called as every wire, by its NIC under the NIC's lock; failure() by any thread.
class RingWire final : public Wire {
 public:
  explicit RingWire(WireAddress self) : self_(self) {}

  /// Before the NIC has the wire. `rank` is the peer's, for errors; its NIC signs with `peer`.
  /// `queue` is the only one of this NIC's that the peer may speak to; 0: any.
  void add_peer(WireAddress peer, int rank, std::uint32_t queue, RingWriter writer,
                RingReader reader, RingBell bell);

  WireAddress address() const override { return self_; }
  bool send(WireAddress to, WireMessage& message) override;
  bool receive(WireMessage& message) override;
  void end_receive() override;

  /// The first failure of a lane. Its origin is the peer's rank.
  std::optional<Error> failure() const;

 private:
  struct Lane {
    WireAddress peer;
    int rank;
    std::uint32_t queue;
    RingWriter writer;
    RingReader reader;
    RingBell bell;
    bool dead = false;
  };
  void kill(Lane& lane, Error error);
  static Status check_sender(const Lane& lane, const WireMessage& message);
  /// False if nothing has come on this lane.
  bool receive_from(std::size_t place, WireMessage& message);
  static Payload payload_on(const Lane& lane, const WireHead& head);
  Result<bool> read_from(Lane& lane, WireMessage& message);

  const WireAddress self_;
  std::vector<Lane> lanes_;
  std::map<std::uint64_t, std::size_t> places_;  // of peers in lanes_
  std::size_t next_ = 0;                         // lane to look at first
  std::optional<std::size_t> lent_;              // lane whose last message is still looked at
  Bytes beginning_;                              // of the last message
  mutable std::mutex failure_mutex_;
  std::optional<Error> failure_;
};

}  // namespace oriel::net
