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

/// What NICs say to each other: one request or response is a value. Its bytes may be borrowed, as
/// Wire says, so that they need not be copied on their way.
namespace oriel::net {

/// A NIC as its wire names it.
struct WireAddress {
  std::uint64_t value = 0;
  bool operator==(const WireAddress&) const = default;
};

/// Where bytes lie that a peer may fetch, as the wire of the NIC that has them names it.
struct WireSource {
  std::uint64_t key = 0;
  std::uint64_t address = 0;
  bool operator==(const WireSource&) const = default;
};

/// Where bytes are fetched to: memory of this side's, and the key by which the entry named it.
struct WireTarget {
  std::uint32_t key = 0;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
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
  /// The bytes of this write are fetched by the NIC that is written to, by the wire, from here.
  std::optional<WireSource> source;
  Payload payload;
};

struct WireResponse {
  std::uint32_t to_queue = 0;
  std::uint32_t epoch = 0;
  std::uint64_t number = 0;
  Syndrome syndrome = Syndrome::none;
  bool not_ready = false;  ///< the peer has nowhere to put an immediate: to be repeated later
  /// The peer has not mapped, or has no more, what a direct write is to be copied from, or cannot
  /// fetch: nothing was accepted, and the bytes are to come in messages under the same number.
  bool not_mapped = false;
  std::uint64_t old_value = 0;
  Payload payload;  ///< what was read
};

struct WireMessage {
  std::variant<WireRequest, WireResponse> body;
  /// Of one that has been sent, by a wire that hears what has arrived: how many it is to be then.
  std::uint64_t place = 0;
};

/// What a wire knows of a peer's NIC.
struct WireSign {
  TimePoint heard{};  ///< when anything sound last came from there, messages and what is fetched
  std::uint64_t arrived = 0;  ///< what was sent there up to this place has come, or never will
};

/// Bytes that a NIC fetches from memory of a peer's. The wire holds it too, and keeps writing to
/// the memory until it is done, whether anybody still waits for it or not.
class WireFetch {
 public:
  explicit WireFetch(const WireTarget& target) : target_(target) {}
  /// The memory is not touched any more.
  bool is_done() const { return done_.load(std::memory_order_acquire); }
  /// Once it is done: the bytes are not all there.
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

/// How a NIC reaches others. Messages between two NICs arrive in the order in which they were
/// sent, or not at all. Owned and called by one NIC, under its lock; neither call blocks.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual WireAddress address() const = 0;  ///< this NIC's
  /// False, and the message left alone, while there is no room: to be tried again. A message to
  /// nobody is lost, as messages are. What a payload borrows is not looked at any more once this
  /// has returned.
  virtual bool send(WireAddress to, WireMessage& message) = 0;
  /// False if nothing has come. A payload may be borrowed from the wire: it may go with the next
  /// call of receive() or end_receive(), and until then take room that peers wait for. The peer may
  /// change such bytes at any time, so who looks at them does so once, or in a copy.
  virtual bool receive(WireMessage& message) = 0;
  /// Nobody looks any more at what was received last.
  virtual void end_receive() {}
  /// Nothing more is to be sent for now: what a wire has kept back to send it with more may go.
  virtual void end_turn() {}
  /// Of `peer`, for whatever queue; empty where nobody notes that.
  virtual WireSign sign_of(WireAddress /*peer*/) { return {}; }

  // Of wires by which a NIC can fetch what it is to write itself, so that neither side copies it.

  /// Whether that is so between this NIC and `peer`, in both directions.
  virtual bool can_fetch(WireAddress /*peer*/) { return false; }
  /// Lets the peer, which is told of it, fetch these bytes of the host's memory, until take_back().
  /// Nothing if that cannot be had.
  virtual std::optional<WireSource> lend(WireAddress /*peer*/, const std::byte* /*from*/,
                                         std::size_t /*bytes*/) {
    return std::nullopt;
  }
  virtual void take_back(WireAddress /*peer*/, const WireSource& /*source*/) {}
  /// Only where can_fetch() has said so.
  virtual std::shared_ptr<WireFetch> fetch(WireAddress /*peer*/, const WireSource& /*source*/,
                                           const WireTarget& /*target*/) {
    return nullptr;
  }
  /// Whether anything is being fetched by this key. Memory may have several keys.
  virtual bool is_fetching(std::uint32_t /*key*/) { return false; }
  /// From whom.
  virtual std::vector<WireAddress> fetches_by(std::uint32_t /*key*/) { return {}; }
  /// Ends it between this NIC and these peers at once, for good: what is fetched from there, or by
  /// them, touches no memory any more. True if the wire has ended so for all peers.
  virtual bool cut(std::span<const WireAddress> /*peers*/) { return false; }
};

}  // namespace oriel::net
