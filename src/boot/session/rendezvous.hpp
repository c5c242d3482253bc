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

/// Limit of the ranks in one communicator.
inline constexpr int kMaxRanks = 1 << 20;

/// Returns the ranks that `rank` is linked to: those at distance 2^k (mod size) on either side,
/// ascending.
std::vector<int> link_neighbours(int rank, int size);

/// First message of a rank to the root service, after the handshake. The rank's next message is its
/// last. It sends kRootDone (one byte) once it has links with all its neighbours. Otherwise it
/// sends kRootGaveUp and the ErrorRecord of its reason.
struct RootHello {
  static constexpr std::size_t kBytes = 48;

  std::int32_t rank = -1;
  std::int32_t size = 0;
  std::uint32_t timeout_ms = 0;  ///< remaining timeout of the rank
  std::uint64_t process = 0;     ///< process_number() of the rank's process
  SocketAddress address;         ///< listening address for higher ranks

  Bytes encode() const;
  static Result<RootHello> decode(ByteView bytes);
};
inline constexpr std::byte kRootDone{0x44};
inline constexpr std::byte kRootGaveUp{0x47};

/// The payload of FrameKind::root_peers.
using PeerAddresses = std::vector<std::pair<int, SocketAddress>>;
Bytes encode_peers(const PeerAddresses& peers);
Result<PeerAddresses> decode_peers(ByteView payload, int size);

/// Rendezvous of one communicator, as a state machine without I/O: hellos in, frames out. Failures
/// are duplicate ranks, different sizes, and ranks that die or do not come in time. A failure is
/// sent to every rank that has come or comes later. Owns the member list, the failure and the
/// unsent frames; all are values that can be destroyed in any order.
class Rendezvous {
 public:
  using Connection = RendezvousMembers::Connection;
  struct Outgoing {
    Connection to;
    Bytes frame;
  };

  /// Extension of all timeouts once all ranks have come. Each rank then knows for which peer it
  /// waits. It reports that peer at its own deadline, a little after the timeout in its hello. If
  /// no rank does, the rendezvous reports the timeout after this extension.
  static constexpr Duration kLinkingGrace = std::chrono::seconds(1);

  /// `expiry`: deadline for the first rank.
  Rendezvous(std::uint64_t own_process, Deadline expiry);

  void on_hello(Connection from, const RootHello& hello, TimePoint now);
  void on_done(Connection from);
  /// Ends the rendezvous because a rank cannot continue. All ranks get `reason`, which may name
  /// another rank.
  void on_gave_up(Connection from, const Error& reason, TimePoint now);
  /// Handles a closed connection: its rank has died unless it was done.
  void on_closed(Connection connection, TimePoint now);
  void on_time(TimePoint now);
  /// Ends the rendezvous because the root service cannot accept connections.
  void on_shortage(const Error& reason, TimePoint now);

  /// Returns the time of the next on_time() call, in constant time.
  Deadline next_timer() const;
  /// Returns whether nothing remains to be done: all ranks have joined or have the error, or the id
  /// has expired.
  bool finished() const { return finished_; }
  /// Returns whether any rank came; if none did, the rendezvous ended because it expired.
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
  Duration longest_timeout_{};
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
