// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/deadline.hpp"

namespace oriel::comm {

/// When a wait counts as a stall that the user is told of, and how often.
struct StallTimes {
  Duration first = std::chrono::seconds(10);
  Duration again = std::chrono::minutes(1);

  /// The times in force in this process. Tests shorten them before a communicator starts.
  static StallTimes& in_force() {
    static constinit StallTimes times;
    return times;
  }
};

/// The longest wait of one rank, as the ticks of the monitor see it. One thread.
class StallWatch {
 public:
  /// Returns whether the wait that began at `since_ns` is the one of the tick before. A wait is
  /// reported to the ticks when it is `age` old.
  bool goes_on(std::uint64_t since_ns, TimePoint now, Duration age) {
    if (since_ns == since_ns_) return true;
    since_ns_ = since_ns;
    begun_ = now - age;
    reports_ = 0;
    due_ = begun_ + StallTimes::in_force().first;
    return false;
  }
  /// Returns whether the user is to be told within `time`.
  bool is_due_within(Duration time, TimePoint now) const { return now + time >= due_; }
  /// Returns how long the wait has lasted if the user is to be told now.
  std::optional<std::chrono::seconds> due(TimePoint now) {
    if (now < due_) return std::nullopt;
    due_ = now + StallTimes::in_force().again;
    ++reports_;
    return std::chrono::duration_cast<std::chrono::seconds>(now - begun_);
  }
  /// Returns whether due() has asked for one report of this wait so far.
  bool is_first() const { return reports_ == 1; }

 private:
  std::uint64_t since_ns_ = 0;  // tells a wait from others
  int reports_ = 0;
  TimePoint begun_{};
  TimePoint due_{};
};

}  // namespace oriel::comm
