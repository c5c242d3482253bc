// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include <fmt/format.h>

#include "base/log.hpp"

namespace oriel::comm {

/// Measures the steps of a start, for the log.
class StepTimes {
 public:
  void end(const char* step) {
    const auto now = std::chrono::steady_clock::now();
    if (log_enabled(LogLevel::info)) {
      text_ +=
          fmt::format("{}{} {:.1f}", text_.empty() ? "" : ", ", step, milliseconds(now - last_));
    }
    last_ = now;
  }
  void write(int rank, const std::string& title) const {
    Log(rank).info("joined {} in {:.1f} ms: {}", title, milliseconds(last_ - begin_), text_);
  }

 private:
  static double milliseconds(std::chrono::steady_clock::duration duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
  }
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_ = begin_;
  std::string text_;
};

}  // namespace oriel::comm
