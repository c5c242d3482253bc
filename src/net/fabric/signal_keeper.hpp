// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <csignal>
#include <set>

namespace oriel::net {

/// Takes off, when destroyed, the handlers of signals that libraries have installed for themselves
/// while it lived: whoever calls us has not asked for them. It leaves alone what the program itself
/// installs meanwhile in another thread: only handlers are taken off that lie in a library loaded
/// since, or in the one that the `culprit` (a function of it, or null) is part of.
/// Lives on one stack. Thread-safe, but for a handler that is replaced twice in the same moment.
class SignalKeeper {
 public:
  explicit SignalKeeper(const void* culprit = nullptr);
  ~SignalKeeper();
  SignalKeeper(const SignalKeeper&) = delete;
  SignalKeeper& operator=(const SignalKeeper&) = delete;

 private:
  static constexpr int kSignals = 32;  // the classic ones
  bool is_foreign(const struct sigaction& now) const;

  const void* culprit_ = nullptr;  // where that library begins
  std::set<const void*> modules_;  // where those begin that were loaded before
  std::array<struct sigaction, kSignals> before_{};
  std::array<bool, kSignals> known_{};
};

}  // namespace oriel::net
