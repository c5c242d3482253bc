// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "boot/auth/socket_address.hpp"
#include "boot/session/rendezvous_failure.hpp"
#include "boot/session/rendezvous_members.hpp"

namespace oriel::boot {

/// More ranks than this in one communicator are refused.
inline constexpr int kMaxRanks = 1 << 20;

/// The ranks that a rank is linked to: those at distance 2^k (mod size) on either side, ascending.
std::vector<int> link_neighbours(int rank, int size);

/// What a rank says to the root service once both have proved the secret; then nothing until it
/// ends with kRootDone, one byte, when it has linked to all its neighbours and they to it, or with
/// kRootGaveUp and the ErrorRecord of its reason.
struct RootHello {
  static constexpr std::size_t kBytes = 48;

  std::int32_t rank = -1;
  std::int32_t size = 0;
  std::uint32_t patience_ms = 0;  ///< how much longer this rank will wait
  std::uint64_t process = 0;      ///< process_number() of the rank's process
  SocketAddress address;          ///< where the rank listens for higher ranks

  Bytes encode() const;
  static Result<RootHello> decode(ByteView bytes);
};
inline constexpr std::byte kRootDone{0x44};
inline constexpr std::byte kRootGaveUp{0x47};

/// The payload of FrameKind::root_peers.
using PeerAddresses = std::vector<std::pair<int, SocketAddress>>;
Bytes encode_peers(const PeerAddresses& peers);
Result<PeerAddresses> decode_peers(ByteView payload, int size);

/// The rendezvous of one communicator as a state machine without I/O: hellos in, frames out. Any
/// failure is told to every rank that has come or comes later: ranks with one number, sizes that
/// differ, a rank that dies or does not come in time. Owns the list of its members, the failure
/// that ends it, and what is left to send; all are values, destroyed in any order.
class Rendezvous {
 public:
  using Connection = RendezvousMembers::Connection;
  struct Outgoing {
    Connection to;
    Bytes frame;
  };

  /// Once all have come each rank knows for whom it waits, and says so when its time is up, a
  /// little after the patience of its hello. Only if none does the rendezvous speaks, so much
  /// later.
  static constexpr Duration kLinkingGrace = std::chrono::seconds(1);

  /// `expiry`: when to give up if no rank has come.
  Rendezvous(std::uint64_t own_process, Deadline expiry);

  void on_hello(Connection from, const RootHello& hello, TimePoint now);
  void on_done(Connection from);
  /// The rank cannot go on. Its reason may name another rank, and becomes everybody's.
  void on_gave_up(Connection from, const Error& reason, TimePoint now);
  /// The connection has ended: the death of its rank, unless it was done.
  void on_closed(Connection connection, TimePoint now);
  void on_time(TimePoint now);
  /// The root service cannot accept connections, for this reason.
  void on_shortage(const Error& reason, TimePoint now);

  /// When on_time() is to be called next. Takes no longer the more ranks there are.
  Deadline next_timer() const;
  /// Nothing more is to be done: all ranks have joined, or have been told why not.
  bool finished() const { return finished_; }
  /// Else it ended because it expired.
  bool anyone_came() const { return size_ > 0 || failure_.error() != nullptr; }
  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }

 private:
  void admit(Connection from, const RootHello& hello, TimePoint now);
  void announce_host();
  void complete();
  void fail(Error error, TimePoint now);
  void send_error(Connection to, int rank);
  Error not_in_time() const;

  std::uint64_t own_process_;
  Deadline expiry_;
  Duration longest_patience_{};
  int size_ = 0;  // 0: no rank has come
  int first_rank_ = -1;
  int host_rank_ = -1;  // the rank in the root service's own process
  RendezvousMembers members_;
  bool complete_ = false;
  bool finished_ = false;
  RendezvousFailure failure_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace oriel::boot
