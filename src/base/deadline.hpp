// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace oriel {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::nanoseconds;

/// Time source of the set-up protocols; tests and simulations replace it.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

/// The machine's steady clock.
class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  static const SteadyClock& instance() {
    // Never destroyed: threads of the library may still wait while the process exits.
    static const SteadyClock& clock = *new SteadyClock;
    return clock;
  }
};

/// Moment by which a wait must have ended. A plain value; compare it with a Clock's now().
class Deadline {
 public:
  static Deadline at(TimePoint when) { return Deadline(when); }
  static Deadline after(Duration duration, const Clock& clock = SteadyClock::instance()) {
    return Deadline(clock.now() + duration);
  }
  static Deadline never() { return Deadline(TimePoint::max()); }

  TimePoint when() const { return when_; }
  bool is_never() const { return when_ == TimePoint::max(); }
  bool expired(TimePoint now) const { return now >= when_; }
  Duration remaining(TimePoint now) const {
    return is_never() ? Duration::max() : std::max(Duration::zero(), Duration(when_ - now));
  }
  friend Deadline earlier(Deadline a, Deadline b) { return a.when_ < b.when_ ? a : b; }

 private:
  explicit Deadline(TimePoint when) : when_(when) {}
  TimePoint when_;
};

}  // namespace oriel
