// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>

#include <catch2/catch.hpp>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/api_ranks.hpp"
#include "support/fair_timer.hpp"

// Ranks as containers with a common network have them: one node, but pids mean something else in
// each.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

/// Ends the program as skipped where PID namespaces may not be made.
const bool kPermitted = [] {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::unshare(CLONE_NEWPID) == 0 ? 0 : errno);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  std::printf("skipped: a PID namespace cannot be made: %s\n", std::strerror(WEXITSTATUS(status)));
  std::fflush(stdout);
  ::_exit(77);
}();

/// A process whose pid is 1, in a namespace of its own, that runs `body`.
template <class Body>
pid_t start_in_namespace(const Body& body) {
  require(::unshare(CLONE_NEWPID) == 0, "unshare");
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    body();
    ::_exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank in a namespace: %s\n", error.what());
    ::_exit(1);
  }
}

}  // namespace

TEST_CASE("a rank in another PID namespace is not taken for dead", "[req:1.12]") {
  check_all_ok(play(Cast::processes, 2, [](Players& players) {
    const auto live = [&] {
      auto comm = join(players);
      require(comm.lsa_team().size() == 2, "one node");
      add_one(comm);
      std::this_thread::sleep_for(600ms);  // three times what a monitor waits for a last word
      require_no_error(comm);
      add_one(comm);
      players.barrier();
    };
    if (players.first() == 0) return live();
    const pid_t child = start_in_namespace(live);
    int status = 0;
    require(::waitpid(child, &status, 0) == child && status == 0, "the rank in a namespace");
  }));
}

TEST_CASE("the death of a rank in another PID namespace is seen within a second", "[req:1.12]") {
  check_all_ok(play(Cast::processes, 2, [](Players& players) {
    enum Word : std::size_t { kJoined };
    const auto start = [&] {
      auto comm = join(players);
      add_one(comm);
      ++players.word(kJoined);
      return comm;
    };
    if (players.first() == 0) {
      const auto comm = start();
      players.await(kJoined, 2);
      FairTimer timer;
      players.barrier();  // killed from here on
      timer.restart();
      std::optional<Error> error;
      while (!error && timer.spent() < 1s) {
        std::this_thread::sleep_for(1ms);
        error = comm.async_error();
      }
      require(error && error->origin_rank() == 1, error ? error->to_string() : "not seen");
      return;
    }
    const pid_t child = start_in_namespace([&] {
      const auto comm = start();
      std::this_thread::sleep_for(30s);
    });
    players.await(kJoined, 2);
    players.barrier();
    require(::kill(child, SIGKILL) == 0 && ::waitpid(child, nullptr, 0) == child, "the kill");
  }));
}

}  // namespace oriel::test
