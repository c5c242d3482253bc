// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <mutex>
#include <optional>

#include "oriel/error.hpp"

#include "comm/communicator/communicator_parts.hpp"
#include "comm/communicator/stall_inquiry.hpp"
#include "comm/monitor/monitor.hpp"
#include "comm/monitor/stall_watch.hpp"

namespace oriel::comm {

/// Returns `error` as `rank` sees it: what another rank's user has ended is remote, not aborted.
Error as_seen_by(int rank, Error error);

/// Watches for what ends a communicator: a rank that has died or left, a wait that was given up,
/// ranks in different calls, an abort. The communicator has failed then: the reason is kept, the
/// waits of its kernels and threads end, and the other ranks are told. Also reports waits that
/// last.
///
/// Any thread, but for watch_ranks(), stop_watching() and await_failure(), which are for the thread
/// that makes the communicator's calls.
class FailureWatch final : public Watched {
 public:
  /// `parts` must outlive this.
  explicit FailureWatch(CommunicatorParts& parts) : parts_(parts), inquiry_(parts) {}

  /// Has the monitor look at the other ranks from now on. stop_watching() is to follow.
  Status watch_ranks();
  void stop_watching();

  /// Refuses once the communicator has failed or has been finalized.
  Status check_usable() const;
  /// Returns why the communicator has failed, if it has.
  std::optional<Error> error() const;
  /// Sees to a wait that a kernel has given up, and to what has ended the session, without waiting
  /// for the monitor's next tick.
  void look_for_failure();
  /// As look_for_failure(), after a wait that was given up: until it is known who is to be named.
  void await_failure();
  /// Tells all ranks that the communicator is of no more use. Idempotent.
  void give_up(const Error& error);
  /// As give_up(), for a reason of this rank's own.
  void abort(const Error& reason);

  // From the monitor's thread.
  void peer_lost(Error error) override;
  void peer_left(int rank) override;
  void tick(TimePoint now) override;

 private:
  int rank() const { return parts_.session->rank(); }
  void fail(Error error);
  /// Returns what the notices say of a wait that was given up.
  std::optional<Error> given_up() const;
  void watch_stall(TimePoint now);
  void watch_others();
  /// Returns why the wait for `culprit` cannot end well, once that is certain.
  std::optional<Error> hopeless_wait(int culprit);
  void tell_of_stall(std::chrono::seconds lasted, int culprit) const;

  CommunicatorParts& parts_;
  bool is_watched_ = false;
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  /// A wait that has lasted for a second, as the ticks see it.
  struct Stall {
    StallWatch watch;
    int ticks_since_left = 0;  // ticks at which the one it waits for was gone
    int ticks_behind = 0;      // ... was in a later call
    bool elsewhere = false;    // another rank has told of a wait of its own
  };
  Stall stall_;
  StallInquiry inquiry_;
};

}  // namespace oriel::comm
