// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/event_loop.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "base/try.hpp"

namespace oriel {
namespace {

using namespace std::chrono_literals;

struct Pipe {
  OwnedFd reader, writer;
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    reader = OwnedFd(ends[0]);
    writer = OwnedFd(ends[1]);
  }
};

Task<Result<char>> read_one(EventLoop& loop, int fd, Deadline deadline) {
  ORIEL_CO_CHECK(co_await loop.readable(fd, deadline));
  char letter = 0;
  if (::read(fd, &letter, 1) != 1) co_return system_error("read");
  co_return letter;
}

Task<Result<char>> echo(EventLoop& loop, int from, int to, Deadline deadline) {
  ORIEL_CO_TRY(const char letter, co_await read_one(loop, from, deadline));
  if (::write(to, &letter, 1) != 1) co_return system_error("write");
  co_return letter;
}

}  // namespace

TEST_CASE("two tasks of one loop, one of which needs the other's output, both end", "[req:1.9]") {
  auto loop = std::move(EventLoop::create()).value();
  Pipe first, second;
  const auto deadline = Deadline::after(5s);
  // The first task ends only after the second has run; run in sequence they would deadlock.
  std::vector<Task<Result<char>>> tasks;
  tasks.push_back(read_one(loop, second.reader.get(), deadline));
  tasks.push_back(echo(loop, first.reader.get(), second.writer.get(), deadline));
  REQUIRE(::write(first.writer.get(), "x", 1) == 1);
  auto results = loop.run_all(std::move(tasks));
  CHECK(results.at(0).value() == 'x');
  CHECK(results.at(1).value() == 'x');
}

TEST_CASE("a wait ends at its deadline", "[req:1.12]") {
  static int longest_ms = 0;
  SystemTable table = real_system_table();
  table.poll = [](pollfd* fds, nfds_t count, int timeout_ms) {
    longest_ms = std::max(longest_ms, timeout_ms);
    return real_system_table().poll(fds, count, timeout_ms);
  };
  const ScopedSystemTable scoped(table);
  auto loop = std::move(EventLoop::create()).value();
  const Pipe pipe;
  const auto begin = SteadyClock::instance().now();
  const auto result = loop.run(read_one(loop, pipe.reader.get(), Deadline::after(50ms)));
  const auto spent = SteadyClock::instance().now() - begin;
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().code() == ErrorCode::timeout);
  CHECK(spent >= 50ms);
  CHECK(spent < 5s);
  CHECK(longest_ms <= 50);
}

TEST_CASE("another thread can stop the loop, with its reason", "[req:1.12]") {
  auto loop = std::move(EventLoop::create()).value();
  const Pipe pipe;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(20ms);
    loop.stop(Error(ErrorCode::aborted, "the communicator was aborted"));
    loop.stop(Error(ErrorCode::aborted, "the first reason counts"));
  });
  auto result = loop.run(read_one(loop, pipe.reader.get(), Deadline::never()));
  stopper.join();
  for (int i = 0; i < 2; ++i) {  // later waits fail as well
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().message() == "the communicator was aborted");
    result = loop.run(read_one(loop, pipe.reader.get(), Deadline::never()));
  }
}

TEST_CASE("a coroutine destroyed while it waits leaves the loop") {
  auto loop = std::move(EventLoop::create()).value();
  const Pipe pipe, other;
  {
    auto abandoned = read_one(loop, pipe.reader.get(), Deadline::never());
    abandoned.start();
  }
  REQUIRE(::write(pipe.writer.get(), "x", 1) == 1);
  REQUIRE(::write(other.writer.get(), "y", 1) == 1);
  CHECK(loop.run(read_one(loop, other.reader.get(), Deadline::after(5s))).value() == 'y');
}

}  // namespace oriel
