// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "boot/link/transport.hpp"
#include "boot/session/peers.hpp"

namespace oriel::boot {

/// The messages of the operation that a session's rank is in, over the links to its peers: in which
/// loop it waits, until when, and what it says if that was in vain. A rank that has waited for long
/// tells the others for whom. One operation at a time.
class SessionTransport final : public Transport {
 public:
  SessionTransport(Peers& peers, int rank) : peers_(&peers), rank_(rank) {}

  /// Fails if an operation is in progress, or with the session's failure.
  Status begin(EventLoop& loop, Deadline deadline);
  void end();
  EventLoop& loop() const { return *loop_; }
  Deadline deadline() const { return deadline_; }

  Task<Status> send(int peer, Bytes message) override;
  Task<Result<Bytes>> receive(int peer) override;
  void give_up(const Error& reason) override { peers_->abort(reason); }
  int news_fd() const override;
  Status take_news() override;

  /// Ends once there is a link to each of `peers`; those before this rank are dialled at their
  /// addresses.
  Task<Status> link_to(std::vector<int> peers, const std::map<int, SocketAddress>& addresses);
  /// The outcome of a wait for `waiting_for`; that only a timer of the links was due is no failure.
  /// The caller holds the lock.
  Status after_wait(Status waited, const std::string& waiting_for, int culprit);

 private:
  /// Waits until something is ready (or a timer is due) and pumps. The timeout's message says
  /// `waiting_for`.
  Task<Status> turn(std::string waiting_for, int culprit);
  Status dial(const std::vector<int>& peers, const std::map<int, SocketAddress>& addresses);
  /// Returns a rank of `peers` without a link, and why; -1 if all have one.
  Result<int> find_missing(const std::vector<int>& peers, std::string& trouble);
  std::optional<Error> blocked(int peer) const;
  Error too_late(const std::string& waiting_for, int culprit, TimePoint now) const;
  void progressed();

  Peers* peers_;
  int rank_;
  // Guarded by the lock of the peers.
  EventLoop* loop_ = nullptr;
  Deadline deadline_ = Deadline::never();
  TimePoint begun_;
  TimePoint progress_at_;
  Duration stuck_after_{};  // without progress, before the other ranks are told
};

}  // namespace oriel::boot
