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

/// The unix sockets of one communicator between processes of one host, one for each pair, which
/// carry file descriptors. Uses abstract names, so no file is left behind even after kill -9 of all
/// processes.
///
/// Connecting takes three steps: listen(), dial(), authenticate(). Every process must have finished
/// a step before any begins the next; the caller agrees on the result in between. All honest
/// connections thus wait in the listeners' queues when authenticate() begins. A process that fails
/// and closes its sockets is therefore noticed at once, without a timeout. The lower index of a
/// pair listens.
///
/// Every failure leaves the object as disconnect() does: no descriptor is kept. Errors that a peer
/// has caused have the peer as origin; all others have no origin yet. Every wait ends by the given
/// deadline. Not thread-safe; several exchanges may run in one loop. Must not be moved.
class FdExchange {
 public:
  /// `ranks` are world ranks, one for each process, in the same order everywhere; `self` is this
  /// process's index among them. `key` is the communicator's key for this purpose, `realm` its
  /// number. `tag` separates exchanges of one realm. `linked` says by process whether this one
  /// connects to it, equally on both sides of each pair; empty: to all.
  FdExchange(const boot::Key& key, std::uint64_t realm, std::uint64_t tag, std::vector<int> ranks,
             int self, const std::vector<bool>& linked = {});
  ~FdExchange();
  FdExchange(const FdExchange&) = delete;
  FdExchange& operator=(const FdExchange&) = delete;

  /// Lets events that end an operation of `group` end the waits here as well. Otherwise an abort
  /// would have to wait for a stopped rank. `group` must outlive this object.
  void watch(boot::Group& group) { group_ = &group; }

  bool connected() const { return connected_; }

  /// Disconnects, then opens a listener under a new random name if a linked process has a higher
  /// index. Returns the name for the peers. Local.
  Result<FdSocketName> listen();
  /// Connects to the processes with a lower index; names[i] is the name of process i.
  Task<Status> dial(EventLoop& loop, std::vector<FdSocketName> names, Deadline deadline);
  /// Accepts the processes with a higher index; both sides of each pair prove the secret.
  /// Closes foreign connections. Some hundreds of silent ones in the queue cost half a second for
  /// each batch that the acceptor holds at once. A batch has at most 256, or fewer under a low
  /// RLIMIT_NOFILE.
  Task<Status> authenticate(EventLoop& loop, Deadline deadline);

  /// Sends `mine` to every peer and receives counts[i] descriptors from process i (counts[self] is
  /// ignored). Every process must call it with matching counts. Closes `mine` at the end, even
  /// after an error. Requires connected().
  Task<Result<std::vector<std::vector<OwnedFd>>>> exchange(EventLoop& loop,
                                                           std::vector<OwnedFd> mine,
                                                           std::vector<std::size_t> counts,
                                                           Deadline deadline);
  /// Sends different descriptors to each peer: mine[i] goes to process i. Otherwise like
  /// exchange().
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
  /// Lets the group's notices end the poller's waits from now on.
  Status watch_notices();
  Status receive_notices();
  Status begin_authentication(const Clock& clock);
  Status begin_exchange(const std::vector<std::size_t>& counts);
  /// Runs the poller until no process is missing; disconnects on failure.
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
  std::vector<Peer> peers_;  // by process; elements never move
  std::size_t self_;
  bool connected_ = false;
  std::uint64_t sequence_ = 0;  // number of exchanges since connecting
  std::optional<Error> failure_;
  boot::Group* group_ = nullptr;  // null: only the deadline ends a wait

  // Exists while authenticate() or an exchange runs; destroyed after the acceptor.
  std::optional<boot::Poller> poller_;
  OwnedFd listener_;                            // from listen() until authenticate()
  std::unique_ptr<boot::Acceptor> acceptor_;    // during authenticate()
  std::vector<std::vector<OwnedFd>> outgoing_;  // by process, or one list for all
};

}  // namespace oriel::window
