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
/// test framework. The destructor kills and reaps the remaining ones.
class ForkedRanks {
 public:
  ForkedRanks(int count, const std::function<Status(int rank)>& body);
  ~ForkedRanks();
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  pid_t pid(int rank) const { return children_[static_cast<std::size_t>(rank)].pid; }
  void kill(int rank, int signal);
  /// Returns each rank's report within `timeout`: "ok" or its error. For a rank without a report,
  /// returns in angle brackets how it ended or that it still runs.
  std::vector<std::string> collect(std::chrono::milliseconds timeout);

 private:
  struct Child {
    pid_t pid = -1;
    OwnedFd report;
  };
  std::vector<Child> children_;
};

/// Forks the ranks, collects their reports, and reaps them.
std::vector<std::string> run_forked(int count, const std::function<Status(int rank)>& body,
                                    std::chrono::milliseconds timeout);

}  // namespace oriel
