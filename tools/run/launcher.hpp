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
  std::uint16_t port = 0;          ///< MASTER_PORT; 0: a free port
  bool tag_output = false;
  std::chrono::nanoseconds grace = std::chrono::seconds(5);  ///< time from SIGTERM to SIGKILL
  std::optional<std::chrono::nanoseconds> timeout;           ///< time limit of the whole run
};

/// Returns the status of shells for an exec() that failed with `error`: 127 for ENOENT, else 126.
int start_failure_status(int error);

/// Starts the ranks of one program on this host and waits until all have ended. Each rank leads a
/// process group of its own, so that signals reach its descendants too.
///
/// Names the first rank that fails on standard error. Sends SIGTERM to the other ranks and, after
/// the grace period, SIGKILL. Forwards SIGINT, SIGTERM and SIGHUP to all ranks, then SIGKILL after
/// the same period. Not thread safe: blocks SIGCHLD and these three signals and reads them from a
/// signalfd.
class Launcher {
 public:
  explicit Launcher(Options options);
  ~Launcher();  ///< kills and reaps the ranks that still run
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// Runs all ranks and returns the exit status. It is 0 if all succeeded, else the status of the
  /// first rank that failed (128 + n if signal n killed it). Returns 128 + n after signal n to this
  /// process, and 124 after the timeout.
  Result<int> run();

  /// Returns start_failure_status() if run() failed because the program cannot be started.
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
  int exit_status_ = 0;
  std::optional<int> start_failure_;
  bool stopping_ = false;
  std::optional<Deadline> kill_at_;
  Deadline give_up_at_ = Deadline::never();
};

}  // namespace oriel::run
