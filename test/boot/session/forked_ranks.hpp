// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "oriel/error.hpp"

#include "base/fd.hpp"

namespace oriel {

/// Ranks as forked processes that report a Status through a pipe. Children never return into the
/// test framework. The destructor kills and reaps whoever is left.
class ForkedRanks {
 public:
  ForkedRanks(int count, const std::function<Status(int rank)>& body);
  ~ForkedRanks();
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  pid_t pid(int rank) const { return children_[static_cast<std::size_t>(rank)].pid; }
  void kill(int rank, int signal);
  /// What each rank reported by `patience` from now: "ok", its error, or in angle brackets how it
  /// ended without a word or that it has not ended.
  std::vector<std::string> collect(std::chrono::milliseconds patience);

 private:
  struct Child {
    pid_t pid = -1;
    OwnedFd report;
  };
  std::vector<Child> children_;
};

/// Forks, collects, reaps.
std::vector<std::string> run_forked(int count, const std::function<Status(int rank)>& body,
                                    std::chrono::milliseconds patience);

}  // namespace oriel
