// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/settings.hpp"

namespace oriel {

namespace detail {
// Level in force; kLogUnread until the settings have been read.
inline constexpr int kLogUnread = -1;
extern std::atomic<int> log_level_in_force;
int read_log_level();
void write_log_line(LogLevel level, int rank, std::string_view message);
}  // namespace detail

/// Returns whether an event of this level is written. Costs one relaxed load once the settings are
/// read.
inline bool log_enabled(LogLevel level) {
  int in_force = detail::log_level_in_force.load(std::memory_order_relaxed);
  if (in_force == detail::kLogUnread) in_force = detail::read_log_level();
  return static_cast<int>(level) <= in_force;
}

/// Writes one line per event, prefixed with its origin ("host:pid:tid [rank]"). Each line is one
/// write(2) to standard error or to ORIEL_LOG_FILE. By default only alerts are written; ORIEL_LOG
/// selects more. Lines longer than 4 KiB are cut; line breaks inside become spaces.
///
/// A value that holds the rank it logs for; cheap to copy. Thread-safe. A disabled event costs one
/// load, but its arguments are evaluated, so keep them cheap. If an event cannot be written, it is
/// dropped: logging never makes a call fail.
class Log {
 public:
  constexpr Log() = default;
  constexpr explicit Log(int rank) : rank_(rank) {}

  /// Reports a problem that no call returns and that the user must know. Labelled WARN.
  template <typename... Args>
  void alert(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::alert, format, std::forward<Args>(args)...);
  }
  /// Reports the version of the library; rank 0 does so at each start of a communicator.
  template <typename... Args>
  void version(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::version, format, std::forward<Args>(args)...);
  }
  /// Reports a problem; the call continues or returns an error.
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::warn, format, std::forward<Args>(args)...);
  }
  /// Reports detected hardware and choices; a few lines per communicator.
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::info, format, std::forward<Args>(args)...);
  }
  /// Reports every step.
  template <typename... Args>
  void trace(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::trace, format, std::forward<Args>(args)...);
  }

 private:
  template <typename... Args>
  void write(LogLevel level, fmt::format_string<Args...> format, Args&&... args) const {
    if (!log_enabled(level)) return;
    fmt::memory_buffer message;
    fmt::format_to(fmt::appender(message), format, std::forward<Args>(args)...);
    detail::write_log_line(level, rank_, std::string_view(message.data(), message.size()));
  }

  int rank_ = -1;
};

/// Checks ORIEL_LOG_FILE if the level is `version` or higher. Returns invalid_usage if the file
/// cannot be opened, or is no file, terminal, other character device, or pipe with a reader. In
/// these cases the lines go to standard error.
Status check_log();

/// Makes the next event read the settings and open its file again. For tests; no other thread may
/// be logging.
void reread_log_settings();

}  // namespace oriel
