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

/// Messages of the operation that a session's rank is in, over its links. Knows the event loop and
/// the deadline of the operation, and builds the error of a timeout. If a rank waits long, it
/// announces to the others for whom. One operation at a time.
class SessionTransport final : public Transport {
 public:
  SessionTransport(Peers& peers, int rank) : peers_(&peers), rank_(rank) {}

  /// Starts an operation. Fails if one is in progress, or with the session's failure.
  Status begin(EventLoop& loop, Deadline deadline);
  void end();
  EventLoop& loop() const { return *loop_; }
  Deadline deadline() const { return deadline_; }

  Task<Status> send(int peer, Bytes message) override;
  Task<Result<Bytes>> receive(int peer) override;
  void give_up(const Error& reason) override { peers_->abort(reason); }
  int notice_fd() const override;
  Status receive_notices() override;

  /// Completes once there is a link to each of `peers`. Connects to the lower ranks among them at
  /// their addresses.
  Task<Status> link_to(std::vector<int> peers, const std::map<int, SocketAddress>& addresses);
  /// Returns the result of a wait for `waiting_for`. A timeout before the operation's deadline is
  /// no failure: a timer of the links was due. The caller holds the lock.
  Status after_wait(Status waited, const std::string& waiting_for, int awaited_rank);

 private:
  /// Waits until something is ready or a timer is due, and pumps. The message of a timeout names
  /// `waiting_for`.
  Task<Status> turn(std::string waiting_for, int awaited_rank);
  Status dial(const std::vector<int>& peers, const std::map<int, SocketAddress>& addresses);
  /// Returns a rank of `peers` without a link, and the reason in `trouble`; -1 if all have one.
  Result<int> find_missing(const std::vector<int>& peers, std::string& last_error);
  std::optional<Error> blocked(int peer) const;
  Error too_late(const std::string& waiting_for, int awaited_rank, TimePoint now) const;
  void progressed();

  Peers* peers_;
  int rank_;
  // Guarded by the lock of `peers_`.
  EventLoop* loop_ = nullptr;
  Deadline deadline_ = Deadline::never();
  TimePoint started_;
  TimePoint progress_at_;
  Duration stuck_after_{};  // time without progress before the wait is announced to the other ranks
};

}  // namespace oriel::boot
