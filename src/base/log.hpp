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
// The level in force; kLogUnread until the settings have been read.
inline constexpr int kLogUnread = -1;
extern std::atomic<int> log_level_in_force;
int read_log_level();
void write_log_line(LogLevel level, int rank, std::string_view message);
}  // namespace detail

/// Whether an event of this level would be written: one relaxed load once the settings are read.
inline bool log_enabled(LogLevel level) {
  int in_force = detail::log_level_in_force.load(std::memory_order_relaxed);
  if (in_force == detail::kLogUnread) in_force = detail::read_log_level();
  return static_cast<int>(level) <= in_force;
}

/// The log: one line per event, with where it came from in front ("host:pid:tid [rank]"), each
/// written by one write(2) to standard error or to ORIEL_LOG_FILE. Only alerts are written unless
/// ORIEL_LOG asks for more. A line longer than 4 KiB is cut; line breaks inside become spaces.
///
/// A value that carries the rank it speaks for; free to copy. Any thread. An event that is not
/// asked for costs one load; its arguments are evaluated all the same, so keep them cheap. Events
/// that cannot be written are dropped: the log never makes a call fail.
class Log {
 public:
  constexpr Log() = default;
  constexpr explicit Log(int rank) : rank_(rank) {}

  /// What a user must know without asking; no call reports it. Written as a warning.
  template <typename... Args>
  void alert(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::alert, format, std::forward<Args>(args)...);
  }
  /// What is running: once per process.
  template <typename... Args>
  void version(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::version, format, std::forward<Args>(args)...);
  }
  /// Something is wrong but the call goes on, or an error is returned.
  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::warn, format, std::forward<Args>(args)...);
  }
  /// What was found and chosen; a few lines per communicator.
  template <typename... Args>
  void info(fmt::format_string<Args...> format, Args&&... args) const {
    write(LogLevel::info, format, std::forward<Args>(args)...);
  }
  /// Every step.
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

/// Whether ORIEL_LOG_FILE, if anything is to be logged, is of a kind that can be a log: a file, a
/// terminal or other character device, or a pipe with a reader. A path that cannot be opened is no
/// error; the lines go to standard error then.
Status check_log();

/// Makes the next event read the settings and open its file again. For tests; no other thread may
/// be logging.
void reread_log_settings();

}  // namespace oriel
