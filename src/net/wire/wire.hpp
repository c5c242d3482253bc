// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "net/copy/message_payload.hpp"
#include "net/queue/syndrome.hpp"
#include "net/queue/work_request.hpp"

/// Messages between NICs: one request or response is a value. Its payload may be borrowed, as Wire
/// says, to avoid copies.
namespace oriel::net {

/// Address of a NIC on its wire.
struct WireAddress {
  std::uint64_t value = 0;
  bool operator==(const WireAddress&) const = default;
};

/// Source of a rendezvous read, in the terms of the wire of the NIC that owns the bytes.
struct WireSource {
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  bool operator==(const WireSource&) const = default;
};

/// Destination of a rendezvous read: local memory, and the key by which the WQE named it.
struct WireTarget {
  std::uint32_t key = 0;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

/// `epoch` in requests and responses is the connection's. It keeps messages of an earlier
/// connection of a queue out of the next one.

/// One piece of a WQE. `number` counts the requests of a queue without gaps. A duplicate is
/// executed once. A request that comes too early is dropped, because its sender retransmits it.
struct WireRequest {
  WireAddress from;
  std::uint32_t from_queue = 0;
  std::uint32_t to_queue = 0;
  std::uint32_t epoch = 0;
  std::uint64_t number = 0;
  WorkKind kind = WorkKind::write;  ///< write, read or atomic
  std::uint32_t key = 0;
  std::uint64_t address = 0;      ///< start of the whole WQE's range at the peer
  std::uint64_t bytes = 0;        ///< bytes of the whole WQE
  std::uint64_t offset = 0;       ///< offset of this piece in the WQE
  std::uint32_t piece_bytes = 0;  ///< for a write that carries its bytes: payload.size()
  bool has_immediate = false;     ///< last piece of a write with immediate
  std::uint32_t immediate = 0;
  AtomicWork atomic;
  /// The bytes of this piece do not cross the wire, in either direction. Their receiver copies them
  /// from its mapping of the other side's memory. For a write,
  /// `source_key` and `source_address` name the source.
  bool direct = false;
  std::uint32_t source_key = 0;
  std::uint64_t source_address = 0;  ///< address of this piece
  /// Source of a rendezvous read: the target's NIC reads the bytes of this write from here, by the
  /// wire.
  std::optional<WireSource> source;
  Payload payload;
};

struct WireResponse {
  std::uint32_t to_queue = 0;
  std::uint32_t epoch = 0;
  std::uint64_t number = 0;
  Syndrome syndrome = Syndrome::none;
  bool not_ready = false;  ///< no receive is posted for the immediate: retransmit later
  /// The peer cannot get the bytes of this write. Either it has not (or no longer) mapped the
  /// source of a direct write, or it cannot do rendezvous reads. The peer has accepted nothing. The
  /// sender has to send the bytes in messages under the same number.
  bool not_mapped = false;
  std::uint64_t old_value = 0;
  Payload payload;  ///< bytes that were read
};

struct WireMessage {
  std::variant<WireRequest, WireResponse> body;
  /// Position of a sent message in the order of sends to its peer, to compare with
  /// WireSign::arrived. 0 if the wire does not learn what has arrived.
  std::uint64_t place = 0;
};

/// A wire's knowledge of a peer's NIC.
struct WireSign {
  TimePoint last_received{};  ///< when the last valid message or data of a rendezvous read came
                              ///< from there
  std::uint64_t arrived = 0;  ///< messages up to this place have arrived, or never will
};

/// A rendezvous read from a peer's memory. The wire shares ownership. It keeps writing to the
/// memory until the read is done, even if nobody waits for the read any more.
class RendezvousRead {
 public:
  explicit RendezvousRead(const WireTarget& target) : target_(target) {}
  /// Returns true once the wire no longer touches the memory.
  bool is_done() const { return done_.load(std::memory_order_acquire); }
  /// Returns whether bytes are missing; valid once the read is done.
  bool has_failed() const { return failed_.load(std::memory_order_relaxed); }
  bool overlaps(const std::byte* at, std::size_t bytes) const {
    return at < to() + this->bytes() && to() < at + bytes;
  }

  std::uint32_t key() const { return target_.key; }
  std::byte* to() const { return target_.to; }
  std::size_t bytes() const { return target_.bytes; }
  void end(bool failed) {
    failed_.store(failed, std::memory_order_relaxed);
    done_.store(true, std::memory_order_release);
  }

 private:
  const WireTarget target_;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> done_ = false;
};

/// Transport between a NIC and others. Messages between two NICs arrive in the order in which they
/// were sent, or not at all. A wire is owned and called by one NIC, under its lock. No call blocks
/// but cut().
class Wire {
 public:
  virtual ~Wire() = default;
  virtual WireAddress address() const = 0;  ///< address of this NIC
  /// Returns false, and leaves the message alone, while there is no room: try again later. A
  /// message to an unknown address is lost, as messages may be. A borrowed payload is not accessed
  /// after the call.
  virtual bool send(WireAddress to, WireMessage& message) = 0;
  /// Returns false if nothing has come. A payload may be borrowed from the wire: then it is valid
  /// until the next receive() or end_receive(). Until then it may occupy room that peers wait for.
  /// The peer may change borrowed bytes at any time, so read them once, or read a copy.
  virtual bool receive(WireMessage& message) = 0;
  /// Ends the use of the last received message.
  virtual void end_receive() {}
  /// Ends a batch of sends: a wire may now send what it held back to combine messages.
  virtual void end_turn() {}
  /// Returns what is known of `peer`, for all queues; empty if the wire keeps no such record.
  virtual WireSign sign_of(WireAddress /*peer*/) { return {}; }

  // Rendezvous reads: a NIC reads the bytes of a write to it by the wire, so that neither side
  // copies them.

  /// Returns whether rendezvous reads work between this NIC and `peer`, in both directions.
  virtual bool can_read(WireAddress /*peer*/) { return false; }
  /// Registers these bytes of host memory for reads by the peer until revoke(). The caller sends
  /// the source to the peer. Returns nullopt if the bytes cannot be registered.
  virtual std::optional<WireSource> expose(WireAddress /*peer*/, const std::byte* /*from*/,
                                           std::size_t /*bytes*/) {
    return std::nullopt;
  }
  virtual void revoke(WireAddress /*peer*/, const WireSource& /*source*/) {}
  /// Starts a rendezvous read. Call it only if can_read() returned true for the peer.
  virtual std::shared_ptr<RendezvousRead> rendezvous_read(WireAddress /*peer*/,
                                                          const WireSource& /*source*/,
                                                          const WireTarget& /*target*/) {
    return nullptr;
  }
  /// Returns whether a read into memory under this key is in flight. Memory may have several keys.
  virtual bool is_reading(std::uint32_t /*key*/) { return false; }
  /// Returns the peers from which memory under this key is being read.
  virtual std::vector<WireAddress> reads_by(std::uint32_t /*key*/) { return {}; }
  /// Ends rendezvous reads between this NIC and these peers at once, for good. After the call no
  /// read from or by these peers touches memory. Returns true if the wire has ended the reads with
  /// all peers.
  virtual bool cut(std::span<const WireAddress> /*peers*/) { return false; }
};

}  // namespace oriel::net
