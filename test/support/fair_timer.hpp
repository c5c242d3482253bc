// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <thread>

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "boot/session/inherited_memory.hpp"

namespace oriel::test {

/// Time as a test can bound it on a machine that others use too. A process of its own does nothing
/// but wake every few milliseconds, and notes for how long it was kept from running, as when the
/// whole machine stands still for seconds. That time does not count; a wait of any other kind does,
/// so a bound shows the same as it would on a quiet machine.
///
/// Children that are forked after it may ask it too. Not for copies; ends its process when
/// destroyed.
class FairTimer {
 public:
  using Clock = std::chrono::steady_clock;

  FairTimer() : owner_(::getpid()), witness_(::fork()) {
    if (witness_ < 0) throw std::runtime_error("fork");
    if (witness_ == 0) keep_watch();
    while (place_->woke == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    restart();
  }
  ~FairTimer() {
    if (owner_ != ::getpid()) return;
    ::kill(witness_, SIGKILL);
    ::waitpid(witness_, nullptr, 0);
  }
  FairTimer(const FairTimer&) = delete;
  FairTimer& operator=(const FairTimer&) = delete;

  /// Counts from now on.
  void restart() {
    withheld_before_ = total();
    begin_ = Clock::now();
  }
  /// What has passed and counts.
  std::chrono::milliseconds spent() const {
    const std::chrono::nanoseconds passed = Clock::now() - begin_;
    return std::chrono::duration_cast<std::chrono::milliseconds>(passed - withheld());
  }
  /// What has passed and does not count.
  std::chrono::nanoseconds withheld() const { return total() - withheld_before_; }

 private:
  struct Place {
    std::atomic<std::int64_t> woke{0};
    std::atomic<std::int64_t> withheld{0};  // of the time until `woke`
  };
  static constexpr std::chrono::nanoseconds kNap = std::chrono::milliseconds(2);
  static constexpr std::chrono::nanoseconds kUsual = std::chrono::milliseconds(3);

  static std::int64_t now() {
    return Clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  static std::int64_t late(std::int64_t since) {
    const std::int64_t more = now() - since - kNap.count();
    return more > kUsual.count() ? more : 0;
  }

  [[noreturn]] void keep_watch() {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // A peer's end is seen only once nobody has its sockets open.
    static_cast<void>(::syscall(SYS_close_range, 3U, ~0U, 0U));
    for (;;) {
      place_->woke = now();
      std::this_thread::sleep_for(kNap);
      place_->withheld += late(place_->woke);
    }
  }
  std::chrono::nanoseconds total() const {
    const std::int64_t woke = place_->woke;  // first: what is added meanwhile is not missed
    return std::chrono::nanoseconds(place_->withheld + late(woke));
  }

  const Shared<Place> place_;
  const pid_t owner_;
  const pid_t witness_;
  std::chrono::nanoseconds withheld_before_{};
  Clock::time_point begin_;
};

}  // namespace oriel::test
