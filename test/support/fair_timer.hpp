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

/// Measures time so that a test can bound it on a machine that others use too. A witness process
/// wakes every few milliseconds and adds up how long it was kept from running. Such time, as when
/// the whole machine stands still for seconds, does not count. Waits of any other kind count, so a
/// bound shows the same as it would on a quiet machine.
///
/// Children that are forked after its construction may use it too. Must not be copied; the
/// destructor ends the witness process.
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

  /// Starts to measure anew.
  void restart() {
    withheld_before_ = total();
    begin_ = Clock::now();
  }
  /// Returns the time since restart() that counts.
  std::chrono::milliseconds spent() const {
    const std::chrono::nanoseconds passed = Clock::now() - begin_;
    return std::chrono::duration_cast<std::chrono::milliseconds>(passed - withheld());
  }
  /// Returns the time since restart() that does not count.
  std::chrono::nanoseconds withheld() const { return total() - withheld_before_; }

 private:
  struct Place {
    std::atomic<std::int64_t> woke{0};
    std::atomic<std::int64_t> withheld{0};  // time withheld up to `woke`
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
    // Closes all descriptors: a peer's end is seen only once no process has its sockets open.
    static_cast<void>(::syscall(SYS_close_range, 3U, ~0U, 0U));
    for (;;) {
      place_->woke = now();
      std::this_thread::sleep_for(kNap);
      place_->withheld += late(place_->woke);
    }
  }
  std::chrono::nanoseconds total() const {
    const std::int64_t woke = place_->woke;  // read first, so that no later time is missed
    return std::chrono::nanoseconds(place_->withheld + late(woke));
  }

  const Shared<Place> place_;
  const pid_t owner_;
  const pid_t witness_;
  std::chrono::nanoseconds withheld_before_{};
  Clock::time_point begin_;
};

}  // namespace oriel::test
