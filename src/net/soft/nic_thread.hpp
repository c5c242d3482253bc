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

/// A thread that drives a NIC until it is stopped. It spins while there is work and yields for a
/// while after the last. Then it naps between two looks, because doorbells are words in memory and
/// nobody wakes it; or, where whoever gives the NIC work also rings a bell, it sleeps on that, or
/// as its owner has told it (FabricSleeper). The application's signals are blocked in it.
/// Move-only; the NIC outlives it.
class NicThread {
 public:
  struct Options {
    /// Does a bounded amount of work, as NicSoft::progress() does; whether there was any.
    std::function<bool()> progress;
    std::function<void()> begin;       ///< called once in the thread; may be empty
    device::Doorbell* bell = nullptr;  ///< outlives the thread
    /// Where it sleeps instead: returns when there may be work, and before long in any case.
    std::function<void()> sleep;
    std::function<void()> wake;  ///< by another thread: ends a sleep, or the next one
    /// Called in the thread with the reason if progress or sleep has thrown; may be empty.
    std::function<void(const Error&)> failed;
  };
  static Result<NicThread> start(Options options);
  NicThread(NicThread&&) noexcept;
  NicThread& operator=(NicThread&&) noexcept;
  /// Ends the thread and waits for it, no longer than one progress() takes.
  ~NicThread();

 private:
  struct State;
  explicit NicThread(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net
