// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/deadline.hpp"
#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// Whether the work of a queue may go on elsewhere after this error: the path did not carry it. Any
/// other would meet the queue there as well, for it lies in what was asked for.
bool is_path_error(Syndrome syndrome);

/// When a path counts as slow, as dead, and as alive again.
struct PathPolicy {
  /// Silence, that is no answer, be it to a part of an entry or to a probe, while there is work:
  /// after so long the path is probed, and after so long it has failed.
  Duration suspect_after = std::chrono::milliseconds(500);
  Duration fail_after = std::chrono::seconds(3);
  /// The path has failed with the errors_most-th error within error_window.
  std::uint32_t errors_most = 1;
  Duration error_window = std::chrono::seconds(10);
  /// Between two probes.
  Duration probe_every = std::chrono::milliseconds(50);
  /// A path that has failed is left alone for so long, then probed; it is well after so many
  /// answers in a row. One that fails soon after that is left alone twice as long each time.
  Duration retry_first = std::chrono::seconds(1);
  Duration retry_most = std::chrono::seconds(60);
  Duration stable_after = std::chrono::seconds(30);
  std::uint32_t answers_needed = 3;
};

enum class PathState : std::uint8_t {
  healthy,
  suspected,  ///< still used: an error that was the first one, or silence
  failed,     ///< not used and left alone
  probing,    ///< not used, but it is asked whether it works again
};
const char* to_string(PathState state);

/// Why a path has failed.
struct PathCause {
  enum class Kind : std::uint8_t { none, error, silence, given_up };
  Kind kind = Kind::none;
  Syndrome syndrome = Syndrome::none;  ///< of an error
  bool operator==(const PathCause&) const = default;
};
/// "it has not failed", "error 0x15", "no sign of life".
std::string to_string(const PathCause& cause);

/// The health of one path as one end sees it. A state machine without I/O: it is told what was seen
/// and when, and says what to do. Times never go back. Not thread-safe.
///
///     healthy -> suspected   error (fewer than errors_most), or silence for suspect_after
///     suspected -> healthy   an answer to a part of an entry
///     both -> failed         errors_most errors, or silence for fail_after
///     failed -> probing      after a pause
///     probing -> healthy     answers_needed answers in a row
///     probing -> failed      a probe without an answer for fail_after
///
/// Slow is not dead: any sign of life, be it an answered probe, ends silence.
class PathHealth {
 public:
  PathHealth(const PathPolicy& policy, TimePoint now) : policy_(policy), heard_(now) {}

  PathState state() const { return state_; }
  bool is_usable() const { return state_ <= PathState::suspected; }
  /// The last one; none if the path has never failed.
  const PathCause& cause() const { return cause_; }

  /// The path is in use and has, or has not, work that is not complete. Silence begins with work.
  void has_work(bool work, TimePoint now);
  /// Something was completed, or a part of it answered.
  void progressed(TimePoint now);
  /// A queue on the path has ended with an error for which is_path_error() is true.
  void error(Syndrome syndrome, TimePoint now);
  /// The path could not be taken into use.
  void give_up(TimePoint now);
  /// True if a probe is to be sent now, which then counts as sent.
  bool take_probe(TimePoint now);
  void probe_answered(TimePoint now);
  /// Time has passed.
  void tick(TimePoint now);

 private:
  void fail(const PathCause& cause, TimePoint now);

  PathPolicy policy_;
  PathState state_ = PathState::healthy;
  PathCause cause_;
  bool work_ = false;
  bool by_silence_ = false;  // suspected for that
  TimePoint heard_;          // sign of life, or when work began
  std::uint32_t errors_ = 0;
  TimePoint error_at_{};
  Duration pause_{};
  TimePoint pause_ends_{};
  TimePoint well_at_{};  // last recovery
  bool probe_open_ = false;
  TimePoint probe_at_{};
  std::uint32_t answers_ = 0;
};

}  // namespace oriel::net
