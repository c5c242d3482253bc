// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>
#include <set>

namespace oriel::net {

/// Removes, when destroyed, the signal handlers that libraries have installed during its life: the
/// application has not asked for them. The earlier handlers come back.
///
/// Handlers that the program itself installs meanwhile in another thread stay. So it removes only
/// handlers whose code lies in a library loaded during its life, or in the library of `function`.
/// `function` is the address of a function, or null. Thread-safe, but for a handler
/// that is replaced twice at the same moment.
class SignalKeeper {
 public:
  explicit SignalKeeper(const void* function = nullptr);
  ~SignalKeeper();
  SignalKeeper(const SignalKeeper&) = delete;
  SignalKeeper& operator=(const SignalKeeper&) = delete;

 private:
  static constexpr int kSignals = 32;  // standard signals are 1 to 31
  bool is_foreign(const struct sigaction& now) const;

  const void* library_ = nullptr;  // base address of the function's library
  std::set<const void*> modules_;  // base addresses of the libraries loaded before
  std::array<struct sigaction, kSignals> before_{};
  std::array<bool, kSignals> known_{};
};

}  // namespace oriel::net
