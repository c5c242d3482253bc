// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "oriel/device/doorbell.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "net/soft/nic_soft.hpp"

namespace oriel::net {

/// A thread that drives a NIC until it is stopped. It polls while there is work, and polls and
/// yields for a while after the last work. Then it sleeps in one of three ways. By default it naps
/// between polls, because a doorbell in memory wakes nobody. With `doorbell` it sleeps on that
/// doorbell, which the producers of work ring. With `sleep` it sleeps as its owner says
/// (FabricSleeper). The application's signals are blocked in the thread. Move-only; the NIC
/// outlives it.
class NicThread {
 public:
  struct Options {
    /// Does a bounded amount of work, as NicSoft::progress() does; returns whether there was any.
    std::function<bool()> progress;
    std::function<void()> begin;           ///< called once in the thread; may be empty
    device::Doorbell* doorbell = nullptr;  ///< outlives the thread
    /// Sleeps instead of a nap. Returns when there may be work, and soon in any case.
    std::function<void()> sleep;
    std::function<void()> wake;  ///< called by another thread: ends a sleep, or the next one
    /// Called in the thread with the reason if progress or sleep has thrown; may be empty.
    std::function<void(const Error&)> failed;
  };
  static Result<NicThread> start(Options options);
  NicThread(NicThread&&) noexcept;
  NicThread& operator=(NicThread&&) noexcept;
  /// Ends the thread and waits for it, no longer than one progress() takes. If `wake` does not end
  /// a sleep, the wait also lasts for that sleep.
  ~NicThread();

 private:
  struct State;
  explicit NicThread(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net
