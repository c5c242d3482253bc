// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/log.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/in_child.hpp"
#include "support/log_setup.hpp"

namespace oriel {
namespace {

using test::LogSetup;

}  // namespace

TEST_CASE("nothing is written unless asked", "[promise:7]") {
  const LogSetup setup("none");
  Log().alert("unanswered");
  Log().warn("unanswered");
  CHECK_FALSE(log_enabled(LogLevel::alert));
  CHECK_FALSE(std::filesystem::exists(setup.path()));
}

TEST_CASE("without any setting standard error gets alerts only", "[promise:7]") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const int saved = ::dup(STDERR_FILENO);
  REQUIRE(::dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
  LogSetup::reread();
  Log().version("unanswered");
  Log().warn("unanswered");
  Log().alert("heard");
  REQUIRE(::dup2(saved, STDERR_FILENO) == STDERR_FILENO);
  ::close(saved);
  ::close(ends[1]);
  std::array<char, 512> text{};
  const auto size = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  REQUIRE(size > 0);
  const std::string_view got(text.data(), static_cast<std::size_t>(size));
  CHECK(got.find("unanswered") == std::string_view::npos);
  CHECK(got.ends_with(" ORIEL WARN heard\n"));
}

namespace {

bool pipe_signal_pending() {
  sigset_t pending;
  REQUIRE(::sigpending(&pending) == 0);
  return ::sigismember(&pending, SIGPIPE) == 1;
}

bool pipe_signal_blocked() {
  sigset_t mask;
  REQUIRE(::pthread_sigmask(SIG_BLOCK, nullptr, &mask) == 0);
  return ::sigismember(&mask, SIGPIPE) == 1;
}

void block_pipe_signal(bool block) {
  sigset_t pipe;
  ::sigemptyset(&pipe);
  ::sigaddset(&pipe, SIGPIPE);
  REQUIRE(::pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &pipe, nullptr) == 0);
}

}  // namespace

TEST_CASE("a log whose reader has gone does not end the process", "[promise:7]") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const std::string path = "/dev/fd/" + std::to_string(ends[1]);
  const LogSetup setup("warn", path);  // an absolute path is used as it is
  Log().warn("heard");
  ::close(ends[0]);
  REQUIRE(::signal(SIGPIPE, SIG_DFL) != SIG_ERR);
  Log().warn("unanswered");
  CHECK_FALSE(pipe_signal_blocked());

  block_pipe_signal(true);
  Log().warn("unanswered");
  CHECK(pipe_signal_blocked());
  CHECK_FALSE(pipe_signal_pending());
  REQUIRE(::raise(SIGPIPE) == 0);  // the application's own signal stays pending
  Log().warn("unanswered");
  CHECK(pipe_signal_pending());
  REQUIRE(::signal(SIGPIPE, SIG_IGN) != SIG_ERR);  // discards the signal
  block_pipe_signal(false);
  REQUIRE(::signal(SIGPIPE, SIG_DFL) != SIG_ERR);
  ::close(ends[1]);
}

TEST_CASE("a level includes those before it") {
  const LogSetup setup("info");
  Log().alert("0");
  Log().version("a");
  Log().warn("b");
  Log().info("c");
  Log().trace("d");
  const auto lines = setup.lines();
  REQUIRE(lines.size() == 4);
  CHECK(lines.at(3).ends_with(" ORIEL INFO c"));
}

TEST_CASE("a log line begins with host, process, thread and rank, line breaks become spaces") {
  const LogSetup setup("trace");
  Log(3).info("mapped {} bytes at offset {}", 16, 32);
  Log().info("two\nlines");
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size() - 1) == 0);
  const auto lines = setup.lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines.at(0) == fmt::format("{}:{}:{} [3] ORIEL INFO mapped 16 bytes at offset 32",
                                   host.data(), ::getpid(), ::gettid()));
  CHECK(lines.at(1).ends_with(" ORIEL INFO two lines"));
}

TEST_CASE("a long line is cut, and errno is kept") {
  const LogSetup setup("warn");
  errno = ENOENT;
  Log().warn("{}", std::string(10'000, 'x'));
  CHECK(errno == ENOENT);
  const auto lines = setup.lines();
  REQUIRE(lines.size() == 1);
  CHECK(lines.at(0).size() == 4095);
}

TEST_CASE("%h and %p name the file, and a forked child has its own") {
  const LogSetup setup("warn", "log-%p-%h-%%");
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size() - 1) == 0);
  const auto name = [&](pid_t process) { return fmt::format("log-{}-{}-%", process, host.data()); };
  const auto said = [&](const std::string& word) {
    Log().warn("{}", word);
    const auto lines = setup.lines(name(::getpid()));
    return lines.size() == 1 && lines.at(0).ends_with(word) &&
           lines.at(0).find(fmt::format(":{}:", ::getpid())) != std::string::npos;
  };
  CHECK(said("parent"));
  CHECK(test::status_of_child([&] { return said("child") ? 0 : 1; }) == 0);
}

TEST_CASE("lines of several threads do not mix") {
  const LogSetup setup("info");
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < kLines; ++i) Log(t).info("<{}>", std::string(100, char('a' + t)));
      });
    }
  }
  const auto lines = setup.lines();
  CHECK(lines.size() == kThreads * kLines);
  CHECK(std::all_of(lines.begin(), lines.end(), [](const std::string& line) {
    const auto begin = line.find('<');
    if (begin == std::string::npos || line.size() != begin + 102 || !line.ends_with('>')) {
      return false;
    }
    const char letter = line.at(begin + 1);
    return line.find_first_not_of(letter, begin + 1) == line.size() - 1;
  }));
}

TEST_CASE("an unknown ORIEL_ name is warned about once, at the default level", "[req:1.39][D7]") {
  ::setenv("ORIEL_TIMOUT", "3", 1);
  const LogSetup setup("");  // an empty value counts as unset
  Log().warn("unanswered");
  Log().warn("unanswered");
  ::unsetenv("ORIEL_TIMOUT");
  const auto lines = setup.lines();
  REQUIRE(lines.size() == 1);
  CHECK(lines.at(0).find(" ORIEL WARN ") != std::string::npos);
  CHECK(lines.at(0).find("did you mean ORIEL_TIMEOUT?") != std::string::npos);
}

TEST_CASE("a pipe without a reader, and what is no file, are refused as logs", "[req:1.38]") {
  const LogSetup setup("warn", "pipe");
  const std::string path = setup.path("pipe");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const auto refused = check_log();  // a blocking open would wait for a reader
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message() == "ORIEL_LOG_FILE is \"" + path + "\": nobody reads from it");

  ::setenv("ORIEL_LOG", "none", 1);
  LogSetup::reread();
  CHECK(check_log().ok());  // nothing is to be logged

  const LogSetup nowhere("warn", "no folder/log");
  const auto missing = check_log();
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.error().message().find("No such file or directory") != std::string::npos);

  const LogSetup second("warn", "/dev/null");
  CHECK(check_log().ok());
}

TEST_CASE("a pipe takes the log while it is read, and does not hold it up when it is not") {
  const LogSetup setup("warn", "pipe");
  const std::string path = setup.path("pipe");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  REQUIRE(::fcntl(reader, F_SETPIPE_SZ, 4096) == 4096);
  CHECK(check_log().ok());
  Log().warn("heard");
  std::array<char, 4096> text{};
  const auto size = ::read(reader, text.data(), text.size());
  REQUIRE(size > 0);
  CHECK(std::string_view(text.data(), static_cast<std::size_t>(size)).ends_with("heard\n"));
  Log().warn("{}", std::string(4096, 'x'));
  Log().warn("there is no room for this line");
  REQUIRE(::read(reader, text.data(), text.size()) == 4096);
  CHECK(::read(reader, text.data(), text.size()) < 0);
  ::close(reader);
}

TEST_CASE("a log file that cannot be opened falls back to standard error") {
  const LogSetup setup("warn", "no/such/folder/log");
  Log().warn("this line is meant to be on standard error");
  CHECK_FALSE(std::filesystem::exists(setup.path("no/such/folder/log")));
}

}  // namespace oriel
