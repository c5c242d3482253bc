// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "net/nic_soft.hpp"

namespace oriel::net {

/// A thread that drives a NIC until it is stopped. It spins while there is work, yields for a
/// while after the last and then naps between two looks, because nobody wakes it: doorbells are
/// words in memory. The application's signals are blocked in it.
/// Move-only; the NIC outlives it.
class NicThread {
 public:
  static Result<NicThread> start(NicSoft& nic);
  NicThread(NicThread&&) noexcept;
  NicThread& operator=(NicThread&&) noexcept;
  /// As stop() without a deadline, which takes no longer than one NicSoft::progress().
  ~NicThread();

  /// Ends the thread. After a timeout it is still told to end.
  Status stop(Deadline deadline);

 private:
  struct State;
  explicit NicThread(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace oriel::net
