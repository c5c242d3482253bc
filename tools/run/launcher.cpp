// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "run/launcher.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/try.hpp"
#include "common/process.hpp"

namespace oriel::run {
namespace {

using std::chrono::milliseconds;

// Time limit for reading the remaining output after the last rank has ended. A process that a rank
// left behind may keep its end of the pipe open for ever.
constexpr milliseconds kLastOutput{500};

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
  return set;
}

void say(const std::string& message) {
  fmt::print(stderr, "oriel-run: {}\n", message);
  std::fflush(stderr);
}

}  // namespace

int start_failure_status(int error) {
  return error == ENOENT ? 127 : 126;
}

Launcher::Launcher(Options options)
    : options_(std::move(options)), ranks_(static_cast<std::size_t>(options_.ranks)) {}

Launcher::~Launcher() {
  signal_running(SIGKILL);
  for (Rank& rank : ranks_)
    if (rank.running) ::waitpid(rank.pid, nullptr, 0);
}

Result<int> Launcher::run() {
  const sigset_t set = watched_signals();
  if (::sigprocmask(SIG_BLOCK, &set, nullptr) != 0) return system_error("blocking signals");
  signals_ = OwnedFd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!signals_) return system_error("watching signals");
  std::uint16_t port = options_.port;
  if (port == 0) {
    ORIEL_TRY(port, tools::find_free_port());
  }
  if (options_.timeout) give_up_at_ = Deadline::after(*options_.timeout);
  for (int rank = 0; rank < options_.ranks; ++rank) ORIEL_CHECK(start_rank(rank, port));
  while (running_count() > 0) {
    ORIEL_CHECK(wait_for_events());
    take_signals();
    reap();
    output_.pump();
    escalate_if_due();
  }
  const Deadline last = Deadline::after(kLastOutput);
  while (output_.open() && !last.expired(SteadyClock::instance().now())) {
    std::vector<pollfd> fds;
    output_.watch(fds);
    ::poll(fds.data(), fds.size(), 50);
    output_.pump();
  }
  output_.flush();
  return exit_status_;
}

// Starts one rank. If exec() fails, the child sends errno through a pipe; a successful exec()
// closes the pipe.
Status Launcher::start_rank(int rank, std::uint16_t port) {
  int report[2];
  if (::pipe2(report, O_CLOEXEC) != 0) return system_error("making a pipe");
  const OwnedFd reader(report[0]);
  OwnedFd writer(report[1]);
  TaggedOutput::Ends ends;
  if (options_.tag_output) {
    ORIEL_TRY(ends, output_.add(rank));
  }
  const pid_t pid = ::fork();
  if (pid < 0) return system_error(fmt::format("starting rank {}", rank));
  if (pid == 0) {
    if (ends.out) ::dup2(ends.out.get(), STDOUT_FILENO);
    if (ends.err) ::dup2(ends.err.get(), STDERR_FILENO);
    become_rank(rank, port, writer.get());
  }
  ::setpgid(pid, pid);  // called in parent and child, so that neither runs before it
  ranks_[static_cast<std::size_t>(rank)] = Rank{pid, true};
  writer.reset();
  int status = 0;
  ssize_t got;
  do got = ::read(reader.get(), &status, sizeof status);
  while (got < 0 && errno == EINTR);
  if (got == sizeof status) {
    start_failure_ = start_failure_status(status);
    return system_error(fmt::format("running '{}'", options_.command.front()), status);
  }
  return {};
}

void Launcher::become_rank(int rank, std::uint16_t port, int report_fd) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const sigset_t set = watched_signals();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  // Only rank 0 may read standard input, and only if it is no terminal. A background process group
  // that reads the terminal is stopped.
  if (rank != 0 || ::isatty(STDIN_FILENO)) {
    const int null_fd = ::open("/dev/null", O_RDONLY);
    if (null_fd >= 0) ::dup2(null_fd, STDIN_FILENO);
    if (null_fd > STDIN_FILENO) ::close(null_fd);
  }
  const auto set_number = [](const char* name, int value) {
    ::setenv(name, std::to_string(value).c_str(), 1);
  };
  set_number("RANK", rank);
  set_number("LOCAL_RANK", rank);
  set_number("WORLD_SIZE", options_.ranks);
  set_number("LOCAL_WORLD_SIZE", options_.ranks);
  set_number("MASTER_PORT", port);
  ::setenv("MASTER_ADDR", options_.host.c_str(), 1);
  if (options_.preload) options_.preload->apply(rank == 0);
  std::vector<char*> arguments;
  for (std::string& argument : options_.command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  const int status = errno;
  static_cast<void>(!::write(report_fd, &status, sizeof status));
  ::_exit(start_failure_status(status));
}

Status Launcher::wait_for_events() {
  std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
  output_.watch(fds);
  const TimePoint now = SteadyClock::instance().now();
  const Deadline next = kill_at_ ? earlier(*kill_at_, give_up_at_) : give_up_at_;
  int timeout_ms = -1;
  if (!next.is_never()) {
    // Rounds up, so that the deadline has passed when poll() returns.
    const auto left = std::chrono::ceil<milliseconds>(next.remaining(now)).count();
    timeout_ms = static_cast<int>(std::min<std::int64_t>(left, 60'000));
  }
  if (::poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR)
    return system_error("waiting for the ranks");
  return {};
}

void Launcher::take_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    say(fmt::format("{}; passing it on to {} rank(s)", tools::signal_name(signal),
                    running_count()));
    if (exit_status_ == 0) exit_status_ = 128 + signal;
    stop_all(signal);
  }
}

void Launcher::reap() {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    Rank& one = ranks_[static_cast<std::size_t>(rank)];
    if (!one.running) continue;
    siginfo_t info{};
    // Leaves the leader unreaped (WNOWAIT) until the group is killed: before, the system cannot
    // reuse the group's id.
    if (::waitid(P_PID, static_cast<id_t>(one.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
      continue;
    const bool failed = info.si_code != CLD_EXITED || info.si_status != 0;
    if (failed || stopping_) ::kill(-one.pid, SIGKILL);
    int status = 0;
    ::waitpid(one.pid, &status, 0);
    one.running = false;
    note_end(rank, status);
  }
}

void Launcher::note_end(int rank, int wait_status) {
  if (wait_status == 0 || stopping_) return;
  exit_status_ = tools::shell_status(wait_status);
  const int others = running_count();
  say(fmt::format("rank {} (pid {}) {}{}", rank, ranks_[static_cast<std::size_t>(rank)].pid,
                  tools::describe_end(wait_status),
                  others ? fmt::format("; stopping the other {}", others) : ""));
  stop_all(SIGTERM);
}

void Launcher::stop_all(int signal) {
  if (!stopping_) kill_at_ = Deadline::after(options_.grace);
  stopping_ = true;
  signal_running(signal);
}

void Launcher::escalate_if_due() {
  const TimePoint now = SteadyClock::instance().now();
  if (give_up_at_.expired(now) && running_count() > 0) {
    give_up_at_ = Deadline::never();
    std::string which;
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      if (ranks_[i].running) which += fmt::format(" {} (pid {})", i, ranks_[i].pid);
    say(fmt::format("the time limit has passed; stopping rank(s){}", which));
    if (exit_status_ == 0) exit_status_ = 124;
    stop_all(SIGTERM);
  }
  if (kill_at_ && kill_at_->expired(now) && running_count() > 0) {
    kill_at_.reset();
    say(fmt::format("{} rank(s) did not end when asked to; killing them", running_count()));
    signal_running(SIGKILL);
  }
}

void Launcher::signal_running(int signal) {
  for (const Rank& rank : ranks_) {
    if (!rank.running) continue;
    ::kill(-rank.pid, signal);
    ::kill(-rank.pid, SIGCONT);  // a stopped process handles a signal only after SIGCONT
  }
}

int Launcher::running_count() const {
  return static_cast<int>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; }));
}

}  // namespace oriel::run
