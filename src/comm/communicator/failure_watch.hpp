// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "oriel/error.hpp"

#include "comm/communicator/communicator_parts.hpp"
#include "comm/communicator/stall_inquiry.hpp"
#include "comm/monitor/monitor.hpp"
#include "comm/monitor/stall_watch.hpp"

namespace oriel::comm {

/// Returns `error` as `rank` sees it: if another rank's user aborted, the code is remote instead of
/// aborted.
Error as_seen_by(int rank, Error error);

/// Detects what ends a communicator: a rank that has died or left, a wait that was given up, ranks
/// in different calls, an abort. The communicator has then failed: the reason is kept, the waits of
/// its kernels and threads end, and the other ranks are informed. Also reports long waits.
///
/// Thread safety: any thread, except for watch_ranks(), stop_watching() and await_failure(). Only
/// the thread that makes the communicator's calls may call these.
class FailureWatch final : public Watched {
 public:
  /// `parts` must outlive this object.
  explicit FailureWatch(CommunicatorParts& parts) : parts_(parts), inquiry_(parts) {}

  /// Starts to watch the other ranks with the monitor. Call stop_watching() later, even if this
  /// fails.
  Status watch_ranks();
  void stop_watching();

  /// Returns an error once the communicator has failed or has been finalized.
  Status check_usable() const {
    const bool is_usable = !parts_.has_failed && !parts_.has_finalized;
    return is_usable ? Status() : Status(unusable_error());
  }
  /// Returns the reason why the communicator has failed, if it has.
  std::optional<Error> error() const;
  /// Fails the communicator if a kernel has given up a wait, or if the network or the session has
  /// failed. Does not wait for the monitor's next tick.
  void detect_failure();
  /// Repeats detect_failure() after a failed call, until the network knows the rank at fault.
  /// Blocks.
  void await_failure();
  /// Fails the communicator on all ranks. Idempotent.
  void give_up(const Error& error);
  /// Like give_up(), with this rank as the origin of the error.
  void abort(const Error& reason);

  // Called by the monitor's thread.
  void peer_lost(Error error) override;
  void peer_left(int rank) override;
  void tick(TimePoint now) override;

 private:
  int rank() const { return parts_.session->rank(); }
  Error unusable_error() const;
  void fail(Error error);
  /// Returns the error that the notices record: a wait that was given up, or a call that failed.
  std::optional<Error> given_up() const;
  /// Returns the error for a wait for `other` that has timed out.
  Error timed_out(int other) const;
  /// Returns whether a wait for `awaited_rank` is a GPU rank's wait for CTAs of its own grid.
  bool is_own_grid(int awaited_rank) const;
  /// Keeps the number of ended calls for the flight file (GPU ranks). Does so before the
  /// communicator's waits end, since calls that fail end too.
  void note_ended_calls();
  void watch_stall(TimePoint now);
  void watch_others();
  /// Returns the reason why the wait for `awaited_rank` cannot succeed, once this is certain.
  std::optional<Error> hopeless_wait(int awaited_rank);
  void log_stall(std::chrono::seconds lasted, int awaited_rank) const;
  /// Writes the calls of all ranks to their files at the first report of a wait.
  void write_calls(const std::string& stall, int awaited_rank) const;

  CommunicatorParts& parts_;
  bool is_watched_ = false;
  mutable std::mutex mutex_;
  std::optional<Error> error_;
  /// State of a wait that has lasted at least stall_report_ns(), updated at each tick.
  struct Stall {
    StallWatch watch;
    int ticks_since_left = 0;  // ticks at which the awaited rank had left
    int ticks_apart = 0;       // ticks at which the awaited rank was in another call
    bool elsewhere = false;    // another rank has reported a wait of its own
  };
  Stall stall_;
  StallInquiry inquiry_;
};

}  // namespace oriel::comm
