// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/// The output and exit status of a program that a test ran.
struct ProgramResult {
  int status = -1;  ///< shell's exit status; -1: killed at the deadline
  std::string out;
  std::string err;
  double seconds = 0;
};

/// A running program. Its output is read during the waits.
class Program {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  explicit Program(std::vector<std::string> command, const Environment& environment = {},
                   const std::string& input = "") {
    int in[2], out[2], err[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0)
      return;
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      dup2(err[1], 2);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      std::vector<char*> arguments;
      for (std::string& one : command) arguments.push_back(one.data());
      arguments.push_back(nullptr);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    // A test's input fits into the pipe's buffer.
    static_cast<void>(!write(in[1], input.data(), input.size()));
    close(in[1]);
    out_ = out[0];
    err_ = err[0];
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_);
    close(err_);
  }

  pid_t pid() const { return pid_; }

  /// Reads standard output until it contains `text`; returns false at the limit or at the end of
  /// the output.
  bool wait_for_output(const std::string& text,
                       std::chrono::seconds limit = std::chrono::seconds(60)) {
    const auto start = std::chrono::steady_clock::now();
    bool out_open = true, err_open = true;
    while (early_.out.find(text) == std::string::npos) {
      if (!out_open || std::chrono::steady_clock::now() - start > limit) return false;
      read_some(out_open, err_open, early_, 20);
    }
    return true;
  }

  ProgramResult wait(std::chrono::seconds limit = std::chrono::seconds(60)) {
    ProgramResult result = early_;
    const auto start = std::chrono::steady_clock::now();
    bool out_open = true, err_open = true;
    int status = 0;
    pid_t ended = 0;
    // Polls for the program's exit, because its remaining children may keep the pipes open.
    while (ended == 0 && std::chrono::steady_clock::now() - start < limit) {
      read_some(out_open, err_open, result, 20);
      ended = waitpid(pid_, &status, WNOHANG);
    }
    while ((out_open || err_open) && read_some(out_open, err_open, result, 50)) {
    }
    result.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (ended != pid_) return result;
    pid_ = -1;
    result.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result;
  }

 private:
  // Reads available output into `result`; returns false if none came within `wait_ms`.
  bool read_some(bool& out_open, bool& err_open, ProgramResult& result, int wait_ms) const {
    pollfd fds[2] = {{out_open ? out_ : -1, POLLIN, 0}, {err_open ? err_ : -1, POLLIN, 0}};
    if (poll(fds, 2, wait_ms) <= 0) return false;
    if (fds[0].revents != 0) out_open = take(out_, result.out);
    if (fds[1].revents != 0) err_open = take(err_, result.err);
    return true;
  }
  static bool take(int fd, std::string& text) {
    char buffer[4096];
    const ssize_t got = read(fd, buffer, sizeof buffer);
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    return got > 0;
  }

  ProgramResult early_;  // output read by wait_for_output()
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
};

inline ProgramResult run_program(std::vector<std::string> command,
                                 const Program::Environment& environment = {},
                                 const std::string& input = "") {
  Program program(std::move(command), environment, input);
  return program.wait();
}

/// Returns true if a process with this id still runs. A zombie counts as ended, because init may
/// not yet have reaped an orphan.
inline bool is_alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(stat, line)) return false;
  const std::size_t name_end = line.rfind(')');
  const char state = name_end + 2 < line.size() ? line[name_end + 2] : 'X';
  return state != 'Z' && state != 'X';
}
