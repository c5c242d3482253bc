// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <memory>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace oriel {
namespace {

constexpr std::size_t kLongestLine = 4096;  // PIPE_BUF: pipes do not interleave such writes
constexpr int kTimeoutMs = 100;             // for one line, if a pipe is full

// The log makes direct system calls instead of using sys(). It must not shift the call counts of
// fault injection in tests, and does not report its own failures.

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown-host";
  return name.data();
}

std::string expand(std::string_view pattern, pid_t process) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '%' && i + 1 < pattern.size()) {
      const char code = pattern[++i];
      if (code == 'h') {
        path += host_name();
      } else if (code == 'p') {
        path += std::to_string(process);
      } else if (code == '%') {
        path += '%';
      } else {
        path += {'%', code};
      }
    } else {
      path += pattern[i];
    }
  }
  return path;
}

/// Destination of one process's lines, and the constant part of their prefix.
struct Sink {
  pid_t process;
  std::string host;
  int fd;             // stays open until the process ends, since another thread may be writing
  std::string unfit;  // reason why ORIEL_LOG_FILE is not used; empty if there is none
};

/// Opens the log without blocking. Otherwise opening a pipe without a reader would delay a rank,
/// and so would writing to a full pipe.
int open_log(const std::string& path, std::string& unfit) {
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int fd = ::open(path.c_str(), flags, 0644);
  struct stat facts {};
  if (fd < 0) {
    unfit = errno == ENXIO ? "nobody reads from it" : std::generic_category().message(errno);
    return fd;
  }
  if (::fstat(fd, &facts) == 0 &&
      (S_ISREG(facts.st_mode) || S_ISCHR(facts.st_mode) || S_ISFIFO(facts.st_mode))) {
    return fd;
  }
  unfit = "it is neither a file nor a terminal or pipe";
  ::close(fd);
  return -1;
}

Sink* make_sink() {
  auto sink = std::make_unique<Sink>(Sink{::getpid(), host_name(), STDERR_FILENO, {}});
  const auto settings = process_settings();
  if (settings.ok() && !(*settings)->log_file.empty()) {
    const std::string path = expand((*settings)->log_file, sink->process);
    const int fd = open_log(path, sink->unfit);
    if (fd >= 0) sink->fd = fd;
    if (!sink->unfit.empty()) sink->unfit = fmt::format("\"{}\": {}", path, sink->unfit);
  }
  return sink.release();
}

std::atomic<Sink*> sink_in_force{nullptr};

/// Returns the sink of this process; a forked child makes its own. If two threads create it at
/// once, one of them drops its own. An old sink is never destroyed, since another thread may hold
/// it.
const Sink& current_sink() {
  Sink* sink = sink_in_force.load(std::memory_order_acquire);
  if (sink != nullptr && sink->process == ::getpid()) return *sink;
  Sink* made = make_sink();
  if (sink_in_force.compare_exchange_strong(sink, made, std::memory_order_acq_rel)) return *made;
  if (made->fd != STDERR_FILENO) ::close(made->fd);
  delete made;
  return *sink;
}

const char* level_name(LogLevel level) {
  switch (level) {
    case LogLevel::none:
      return "NONE";
    case LogLevel::version:
      return "VERSION";
    case LogLevel::alert:
    case LogLevel::warn:
      return "WARN";
    case LogLevel::info:
      return "INFO";
    case LogLevel::trace:
      return "TRACE";
  }
  return "UNKNOWN";
}

/// Suppresses the SIGPIPE that a write to a pipe without a reader raises; its default action kills
/// the process.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    had_one_ = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    blocked_ = pthread_sigmask(SIG_BLOCK, &pipe_, &before_) == 0;
  }
  ~NoPipeSignal() {
    if (!blocked_) return;
    const timespec at_once{};
    while (raised_ && !had_one_ && sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

  bool blocked() const { return blocked_; }
  /// Records that a write of this thread has failed with EPIPE.
  void raised() { raised_ = true; }

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool blocked_ = false;
  bool had_one_ = false;  // pending before, so it must stay pending
  bool raised_ = false;
};

void write_all(int fd, const char* data, std::size_t size) {
  NoPipeSignal guard;
  bool can_wait = true;
  while (guard.blocked() && size > 0) {
    const ssize_t written = ::write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) guard.raised();
    if (written < 0 && errno == EAGAIN && can_wait) {  // a pipe's reader is slow or stopped
      can_wait = false;
      pollfd ready{fd, POLLOUT, 0};
      if (::poll(&ready, 1, kTimeoutMs) > 0) continue;
    }
    if (written <= 0) return;
    data += written;
    size -= static_cast<std::size_t>(written);
  }
}

void warn_about_unknown_settings() {
  const auto names = environment_names();
  for (const std::string& warning : unknown_setting_warnings(names)) Log().alert("{}", warning);
}

}  // namespace

namespace detail {

std::atomic<int> log_level_in_force{kLogUnread};

int read_log_level() {
  const auto settings = process_settings();
  // If the settings do not parse, the default applies. The first call that needs them returns the
  // error.
  const int level = static_cast<int>(settings.ok() ? (*settings)->log_level : Settings().log_level);
  int expected = kLogUnread;
  if (log_level_in_force.compare_exchange_strong(expected, level)) warn_about_unknown_settings();
  return level;
}

void write_log_line(LogLevel level, int rank, std::string_view message) {
  const int saved_errno = errno;  // callers may log between a failed call and reading its errno
  const Sink& sink = current_sink();
  fmt::memory_buffer line;
  const auto out = fmt::appender(line);
  fmt::format_to(out, "{}:{}:{} ", sink.host, sink.process, ::syscall(SYS_gettid));
  if (rank >= 0) fmt::format_to(out, "[{}] ", rank);
  fmt::format_to(out, "ORIEL {} ", level_name(level));
  line.append(message);
  line.resize(std::min(line.size(), kLongestLine - 1));
  std::replace(line.begin(), line.end(), '\n', ' ');
  line.push_back('\n');
  write_all(sink.fd, line.data(), line.size());
  errno = saved_errno;
}

}  // namespace detail

Status check_log() {
  if (!log_enabled(LogLevel::version)) return {};
  const Sink& sink = current_sink();
  if (sink.unfit.empty()) return {};
  return Error(ErrorCode::invalid_usage, "ORIEL_LOG_FILE is " + sink.unfit)
      .with_hint(
          "set it to a file in an existing folder, a terminal, or a pipe from which a process "
          "already reads");
}

void reread_log_settings() {
  Sink* old = sink_in_force.exchange(nullptr);
  if (old != nullptr && old->fd != STDERR_FILENO && old->process == ::getpid()) ::close(old->fd);
  delete old;
  detail::log_level_in_force = detail::kLogUnread;
}

}  // namespace oriel
