// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "comm/monitor/stall_watch.hpp"
#include "support/ranks.hpp"

namespace oriel::test {

/// Shortens the stall times, and keeps each process's log at the default level.
class StallLog {
 public:
  StallLog() { comm::StallTimes::in_force() = {kFirst, kAgain}; }
  ~StallLog() {
    comm::StallTimes::in_force() = {};
    std::filesystem::remove_all(folder_);
  }
  StallLog(const StallLog&) = delete;
  StallLog& operator=(const StallLog&) = delete;

  static constexpr auto kFirst = std::chrono::milliseconds(1500);
  static constexpr auto kAgain = std::chrono::milliseconds(400);

  /// Returns the log lines of process `pid` about stalls.
  std::vector<std::string> lines(pid_t pid) const {
    std::ifstream in(folder_ / std::to_string(pid));
    std::vector<std::string> found;
    for (std::string line; std::getline(in, line);) {
      if (line.find("stalled") != std::string::npos) found.push_back(line);
    }
    return found;
  }

 private:
  const std::filesystem::path folder_ = [] {
    const auto folder = fmt::format("/tmp/oriel-stall-{}", ::getpid());
    std::filesystem::create_directory(folder);
    return folder;
  }();
  Environment environment_{Variables{
      {"ORIEL_LOG", ""}, {"NCCL_DEBUG", ""}, {"ORIEL_LOG_FILE", (folder_ / "%p").string()}}};
};

}  // namespace oriel::test
