// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <stdlib.h>

#include "base/log.hpp"

namespace oriel::test {

/// Writes the log at `level` to `file` until destroyed. A relative `file` lies in a temporary
/// folder of this object.
class LogSetup {
 public:
  explicit LogSetup(const char* level, const std::string& file = "log") {
    std::array<char, 32> name{"/tmp/oriel-log-XXXXXX"};
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name.data();
    ::setenv("ORIEL_LOG", level, 1);
    ::setenv("ORIEL_LOG_FILE", path(file).c_str(), 1);
    reread();
  }
  ~LogSetup() {
    ::unsetenv("ORIEL_LOG");
    ::unsetenv("ORIEL_LOG_FILE");
    reread();
    std::filesystem::remove_all(folder_);
  }
  LogSetup(const LogSetup&) = delete;
  LogSetup& operator=(const LogSetup&) = delete;

  static void reread() {
    reread_process_settings();
    reread_log_settings();
  }
  std::string path(const std::string& file = "log") const { return (folder_ / file).string(); }
  std::vector<std::string> lines(const std::string& file = "log") const {
    std::ifstream in(folder_ / file);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
  /// Counts the lines that contain `words`.
  int count(const std::string& words) const {
    int found = 0;
    for (const std::string& line : lines()) found += line.find(words) != std::string::npos ? 1 : 0;
    return found;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace oriel::test
