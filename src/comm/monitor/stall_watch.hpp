// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/deadline.hpp"

namespace oriel::comm {

/// Times after which a stalled wait is reported to the user: first, and again.
struct StallTimes {
  Duration first = std::chrono::seconds(10);
  Duration again = std::chrono::minutes(1);

  /// Returns the process-wide times. Tests shorten them before a communicator starts.
  static StallTimes& in_force() {
    static constinit StallTimes times;
    return times;
  }
};

/// Tracks the long wait that a rank has reported, across the ticks of the monitor. One thread.
class StallWatch {
 public:
  /// Returns whether the wait that began at `since_ns` is the wait of the previous tick. If not,
  /// starts a new wait that is `age` old.
  bool goes_on(std::uint64_t since_ns, TimePoint now, Duration age) {
    if (since_ns == since_ns_) return true;
    since_ns_ = since_ns;
    started_ = now - age;
    reports_ = 0;
    due_ = started_ + StallTimes::in_force().first;
    return false;
  }
  /// Returns whether a report is due within `time`.
  bool is_due_within(Duration time, TimePoint now) const { return now + time >= due_; }
  /// Returns the duration of the wait if a report is due now, and schedules the next report.
  std::optional<std::chrono::seconds> due(TimePoint now) {
    if (now < due_) return std::nullopt;
    due_ = now + StallTimes::in_force().again;
    ++reports_;
    return std::chrono::duration_cast<std::chrono::seconds>(now - started_);
  }
  /// Returns whether due() has requested exactly one report of this wait.
  bool is_first() const { return reports_ == 1; }

 private:
  std::uint64_t since_ns_ = 0;  // identifies the wait
  int reports_ = 0;
  TimePoint started_{};
  TimePoint due_{};
};

}  // namespace oriel::comm
