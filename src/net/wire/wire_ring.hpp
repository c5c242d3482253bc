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

/// A wire between the NICs of processes on one machine. Each direction of each pair has a byte ring
/// in a sealed memfd, with one writer and one reader.
///
/// The memory is a header page and the bytes of the ring behind it. In the header the writer counts
/// the bytes that it has written. On another cache line the reader counts the bytes that it has
/// taken. Both counters never wrap to 0. A record is its length in 4 bytes, the message, and
/// padding to 8 bytes. A record may wrap around the end of the ring.
///
/// Each side keeps its own counter privately and checks the other side's counter. A reader takes
/// nothing beyond what was written or beyond the size of the ring. It parses the head of a message
/// only in a private copy. A payload, which is not parsed, is borrowed from the ring by the code
/// that stores it. A hostile or broken peer can cause an error, never an access outside the ring.
namespace oriel::net {

/// Returns the bytes of the memfd for a ring of `ring_bytes`, a power of two.
std::size_t ring_memory_bytes(std::size_t ring_bytes);
/// Returns the longest message for such a ring: two of them fit.
std::size_t ring_message_bytes_most(std::size_t ring_bytes);

/// The writing end of a ring. Move-only, not thread-safe.
class RingWriter {
 public:
  /// `memory` has ring_memory_bytes(ring_bytes) bytes.
  RingWriter(SharedMapping memory, std::size_t ring_bytes);
  /// Writes one message of two parts; returns false if there is no room now. Returns
  /// ErrorCode::remote if the reader's counter is impossible. Returns invalid_argument if the
  /// message is too long or empty.
  Result<bool> write(ByteView head, ByteView payload);

 private:
  void copy_in(ByteView bytes);

  SharedMapping memory_;
  std::size_t ring_bytes_;
  std::uint64_t written_ = 0;
  std::uint64_t taken_ = 0;  // by the reader, as last read
};

/// The reading end of a ring. Move-only, not thread-safe.
class RingReader {
 public:
  RingReader(SharedMapping memory, std::size_t ring_bytes);
  /// Returns the length of the next message; 0 if there is none. Returns ErrorCode::remote if the
  /// writer's counter or the length is impossible.
  Result<std::size_t> begin();
  /// Appends bytes of the message to `to`. The writer may change the ring at any time, so copy once
  /// and parse only the copy.
  void copy_out(std::size_t from, std::size_t count, Bytes& to) const;
  /// Borrows bytes of the message in the ring, until end().
  Payload expose(std::size_t from, std::size_t count) const;
  /// Frees the room of the message for the writer.
  void end();

 private:
  SharedMapping memory_;
  std::size_t ring_bytes_;
  std::uint64_t taken_ = 0;
  std::uint32_t length_ = 0;  // length of the current message
};

/// Wakes the thread of a NIC: a device::Doorbell in a memfd of its own, which all peers map. Peers
/// can write it at will, so a sleep on it has to be bounded.
class RingDoorbell {
 public:
  static constexpr std::size_t kMemoryBytes = 4096;
  explicit RingDoorbell(SharedMapping memory) : memory_(std::move(memory)) {}
  device::Doorbell& doorbell() const {
    return *reinterpret_cast<device::Doorbell*>(memory_.data());
  }

 private:
  SharedMapping memory_;
};

/// The wire of one NIC, with a connection to each of its peers. An invalid message kills its
/// connection. A dead connection receives nothing more and loses what is sent, and failure() names
/// the peer. A ring does not show the death of a peer; the owner of the connection watches for it.
/// The NIC calls this wire under its lock; any thread may call failure().
class RingWire final : public Wire {
 public:
  explicit RingWire(WireAddress self) : self_(self) {}

  /// Adds a peer; call it before the NIC owns the wire. `rank` is the peer's, for errors. Requests
  /// of its NIC must carry the address `peer`. `queue` is the only queue of this NIC that the peer
  /// may address; 0: any.
  void add_peer(WireAddress peer, int rank, std::uint32_t queue, RingWriter writer,
                RingReader reader, RingDoorbell doorbell);

  WireAddress address() const override { return self_; }
  bool send(WireAddress to, WireMessage& message) override;
  bool receive(WireMessage& message) override;
  void end_receive() override;

  /// Returns the first failure of a connection; the error's origin is the peer's rank.
  std::optional<Error> failure() const;

 private:
  struct Connection {
    WireAddress peer;
    int rank;
    std::uint32_t queue;
    RingWriter writer;
    RingReader reader;
    RingDoorbell doorbell;
    bool dead = false;
  };
  void kill(Connection& connection, Error error);
  static Status check_sender(const Connection& connection, const WireMessage& message);
  /// Returns false if nothing has come on this connection.
  bool receive_from(std::size_t place, WireMessage& message);
  static Payload payload_on(const Connection& connection, const WireHead& head);
  Result<bool> read_from(Connection& connection, WireMessage& message);

  const WireAddress self_;
  std::vector<Connection> connections_;
  std::map<std::uint64_t, std::size_t> places_;  // indexes of connections_, by peers' addresses
  std::size_t next_ = 0;                         // connection to poll first
  std::optional<std::size_t> exposed_;           // connection whose last message is still in use
  Bytes beginning_;                              // first bytes of the last message
  mutable std::mutex failure_mutex_;
  std::optional<Error> failure_;
};

}  // namespace oriel::net
