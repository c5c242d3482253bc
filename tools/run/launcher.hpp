// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "run/output.hpp"
#include "run/preload.hpp"

namespace oriel::run {

struct Options {
  int ranks = 0;
  std::vector<std::string> command;  ///< program and arguments
  std::optional<Preload> preload;
  std::string host = "127.0.0.1";  ///< MASTER_ADDR
  std::uint16_t port = 0;          ///< MASTER_PORT; 0: one that is free
  bool tag_output = false;
  std::chrono::nanoseconds grace = std::chrono::seconds(5);  ///< from SIGTERM to SIGKILL
  std::optional<std::chrono::nanoseconds> timeout;           ///< of the whole run
};

/// The status that shells give where exec() fails with `error`: 127 if there is no such program,
/// else 126.
int start_failure_status(int error);

/// Starts the ranks of one program on this host and sees them through to their end. Each rank leads
/// a process group of its own, so that what it started goes down with it.
///
/// The first rank that fails is named on standard error, the others get SIGTERM and, after the
/// grace period, SIGKILL. SIGINT, SIGTERM and SIGHUP sent to this process are passed on, with the
/// same end. Not thread safe: it takes over SIGCHLD and the signals above for the whole process.
class Launcher {
 public:
  explicit Launcher(Options options);
  ~Launcher();  ///< kills what still runs
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// Runs to the end. The status to exit with: 0 if every rank succeeded, else that of the first
  /// that failed (128 + n for signal n), or 128 + n after being interrupted by signal n.
  Result<int> run();

  /// After run() has failed because the program cannot be started: start_failure_status().
  std::optional<int> start_failure() const { return start_failure_; }

 private:
  struct Rank {
    pid_t pid = -1;
    bool running = false;
  };

  Status start_rank(int rank, std::uint16_t port);
  [[noreturn]] void become_rank(int rank, std::uint16_t port, int report_fd);
  Status wait_for_events();
  void take_signals();
  void reap();
  void note_end(int rank, int wait_status);
  void stop_all(int signal);
  void escalate_if_due();
  void signal_running(int signal);
  int running_count() const;

  Options options_;
  OwnedFd signals_;  // a signalfd
  std::vector<Rank> ranks_;
  TaggedOutput output_;
  int verdict_ = 0;
  std::optional<int> start_failure_;
  bool stopping_ = false;
  std::optional<Deadline> kill_at_;
  Deadline give_up_at_ = Deadline::never();
};

}  // namespace oriel::run
