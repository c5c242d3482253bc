// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/deadline.hpp"
#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// Returns whether the error lies in the path, so that the queue may go on by another path. Any
/// other error lies in the request and would recur on every path.
bool is_path_error(Syndrome syndrome);

/// Limits by which a path counts as suspected, as failed, and as healthy again.
struct PathPolicy {
  /// Timeouts while there is work but neither a part of a request nor a probe is answered. After
  /// suspect_after the path is probed; after fail_after it has failed.
  Duration suspect_after = std::chrono::milliseconds(500);
  Duration fail_after = std::chrono::seconds(3);
  /// The path fails with the errors_most-th error. The count starts again if more than error_window
  /// has passed since the error before.
  std::uint32_t errors_most = 1;
  Duration error_window = std::chrono::seconds(10);
  /// Pause between two probes.
  Duration probe_every = std::chrono::milliseconds(50);
  /// A failed path is left alone for retry_first, then probed. It is healthy after answers_needed
  /// answers in a row. If it fails again within stable_after, the pause doubles each time, up to
  /// retry_most.
  Duration retry_first = std::chrono::seconds(1);
  Duration retry_most = std::chrono::seconds(60);
  Duration stable_after = std::chrono::seconds(30);
  std::uint32_t answers_needed = 3;
};

enum class PathState : std::uint8_t {
  healthy,
  suspected,  ///< still used, after a timeout or an early error
  failed,     ///< not used and not probed
  probing,    ///< not used, but probed
};
const char* to_string(PathState state);

/// Reason for which a path has failed.
struct PathCause {
  enum class Kind : std::uint8_t { none, error, timeout, given_up };
  Kind kind = Kind::none;
  Syndrome syndrome = Syndrome::none;  ///< set for Kind::error
  bool operator==(const PathCause&) const = default;
};
/// Returns a text such as "it has not failed", "error 0x15", "no sign of life".
std::string to_string(const PathCause& cause);

/// Health of one path as one end sees it. A state machine without I/O: its caller reports events
/// with their times and asks what to do. Times never go back. Not thread-safe. Its transitions:
///
///     healthy -> suspected   error (fewer than errors_most), or no answer for suspect_after;
///     suspected -> healthy   an answer to a part of a request, or silent and work is complete;
///     both -> failed         errors_most errors, or no answer for fail_after;
///     failed -> probing      after a pause;
///     probing -> healthy     answers_needed answers in a row;
///     probing -> failed      a probe without an answer for fail_after.
///
/// A slow path is not dead: any sign of life, even an answered probe, restarts the timeouts.
class PathHealth {
 public:
  PathHealth(const PathPolicy& policy, TimePoint now) : policy_(policy), last_received_(now) {}

  PathState state() const { return state_; }
  bool is_usable() const { return state_ <= PathState::suspected; }
  /// Returns the cause of the last error or failure; none if there was neither.
  const PathCause& cause() const { return cause_; }

  /// Reports whether the path, which is in use, has work that is not complete. The timeouts start
  /// with work.
  void has_work(bool work, TimePoint now);
  /// Reports that a request was completed, or a part of it answered.
  void progressed(TimePoint now);
  /// Reports that a queue on the path has ended with an error for which is_path_error() is true.
  void error(Syndrome syndrome, TimePoint now);
  /// Reports that the path could not be taken into use.
  void give_up(TimePoint now);
  /// Returns true if a probe is to be sent now; the probe counts as sent.
  bool take_probe(TimePoint now);
  void probe_answered(TimePoint now);
  /// Checks the timeouts.
  void tick(TimePoint now);

 private:
  void fail(const PathCause& cause, TimePoint now);

  PathPolicy policy_;
  PathState state_ = PathState::healthy;
  PathCause cause_;
  bool work_ = false;
  bool by_timeout_ = false;  // a timeout is why the path is suspected
  TimePoint last_received_;  // latest sign of life or error, or start of work or of probing
  std::uint32_t errors_ = 0;
  TimePoint error_at_{};
  Duration pause_{};
  TimePoint pause_ends_{};
  TimePoint well_at_{};  // latest recovery
  bool probe_open_ = false;
  TimePoint probe_at_{};
  std::uint32_t answers_ = 0;
};

}  // namespace oriel::net
