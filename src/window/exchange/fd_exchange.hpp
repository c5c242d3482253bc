// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "base/fd.hpp"
#include "base/task.hpp"
#include "boot/auth/auth.hpp"
#include "boot/auth/secret.hpp"
#include "boot/link/acceptor.hpp"
#include "boot/link/poller.hpp"
#include "boot/link/rank_group.hpp"
#include "window/exchange/fd_link.hpp"

namespace oriel::window {

/// The unix sockets of one communicator between the processes of an LSA team, one for each pair, on
/// which file descriptors travel. Nothing in a file system: after kill -9 of all sides nothing is
/// left.
///
/// Connecting takes three steps, each of which every process has ended before any begins the next
/// (the caller agrees on the outcome in between): listen(), dial(), prove(). Then all honest
/// connections wait in the listeners' queues when prove() begins, so that a process that fails and
/// closes its sockets is noticed at once and not by its silence. The lower index of a pair listens.
///
/// Every failure leaves the object as disconnect() does: no descriptor is kept. Errors that a peer
/// has caused carry that peer as origin; all others have none yet. Every wait ends by the deadline
/// given. Not thread-safe; several exchanges may run in one loop. Stays where it was made.
class FdExchange {
 public:
  /// `ranks` are world ranks, one for each process, in an order that is the same everywhere; `self`
  /// is this process's place among them. `key` is the communicator's for this purpose,
  /// `realm` its number; `tag` tells
  /// communicators with one secret apart. `linked`, by process, says to which of them this one
  /// connects, and is the same seen from both sides of each pair; empty: to all.
  FdExchange(const boot::Key& key, std::uint64_t realm, std::uint64_t tag, std::vector<int> ranks,
             int self, const std::vector<bool>& linked = {});
  ~FdExchange();
  FdExchange(const FdExchange&) = delete;
  FdExchange& operator=(const FdExchange&) = delete;

  /// Has what ends an operation of `group`, which outlives this, end the waits here as well: else
  /// an abort would have to wait for a rank that is stopped.
  void watch(boot::Group& group) { group_ = &group; }

  bool connected() const { return connected_; }

  /// Opens this process's socket under a fresh random name, which its peers need. Local.
  Result<FdSocketName> listen();
  /// Connects to the processes before this one; names[i] is that of process i.
  Task<Status> dial(EventLoop& loop, std::vector<FdSocketName> names, Deadline deadline);
  /// Accepts the processes behind this one; both sides of each pair prove the secret. Connections
  /// of others are closed, and do not disturb: some hundreds that stay silent in the queue cost
  /// half a second for each 256.
  Task<Status> prove(EventLoop& loop, Deadline deadline);

  /// Sends `mine` to every peer and takes counts[i] descriptors from process i (counts[self] is of
  /// no meaning); every process has to call it with matching counts. `mine` are closed at the end,
  /// whatever it is. Requires connected().
  Task<Result<std::vector<std::vector<OwnedFd>>>> exchange(EventLoop& loop,
                                                           std::vector<OwnedFd> mine,
                                                           std::vector<std::size_t> counts,
                                                           Deadline deadline);
  /// The same with descriptors of its own for each peer: mine[i] goes to process i.
  Task<Result<std::vector<std::vector<OwnedFd>>>> exchange_each(
      EventLoop& loop, std::vector<std::vector<OwnedFd>> mine, std::vector<std::size_t> counts,
      Deadline deadline);
  void disconnect();

 private:
  struct Dialed;
  struct Peer;

  Task<Result<std::vector<std::vector<OwnedFd>>>> exchange_outgoing(EventLoop& loop,
                                                                    std::vector<std::size_t> counts,
                                                                    Deadline deadline);
  Task<Status> connect_one(EventLoop& loop, Peer& peer, FdSocketName name, Deadline deadline);
  /// What the group has to say ends the waits of the poller from now on.
  Status watch_news();
  Status take_news();
  Status begin_proofs(const Clock& clock);
  Status begin_exchange(const std::vector<std::size_t>& counts);
  /// Turns the poller until no process is missing; disconnects on failure.
  Task<Status> turn(EventLoop& loop, const char* what, Deadline deadline);
  void admit(OwnedFd socket, const boot::AuthClaim& claim);
  void notice_absence();
  void advance_dialed(Peer& peer);
  void advance_link(Peer& peer);
  void retry_blocked();
  void fail(Error error);
  std::vector<int> missing(std::size_t first = 0) const;

  boot::Key key_;
  std::uint64_t realm_;
  std::uint64_t tag_;
  std::vector<Peer> peers_;  // by process; never moved
  std::size_t self_;
  bool connected_ = false;
  std::uint64_t sequence_ = 0;  // of the exchanges since connecting
  std::optional<Error> failure_;
  boot::Group* group_ = nullptr;  // null: nothing else ends a wait

  // The poller exists while something is under way, and is destroyed after the acceptor.
  std::optional<boot::Poller> poller_;
  OwnedFd listener_;                            // from listen() until prove()
  std::unique_ptr<boot::Acceptor> acceptor_;    // during prove()
  std::vector<std::vector<OwnedFd>> outgoing_;  // by process, or one list for all
};

}  // namespace oriel::window
