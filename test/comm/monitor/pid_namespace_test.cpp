// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include <catch2/catch.hpp>
#include <sched.h>
#include <unistd.h>

#include "api/api_ranks.hpp"
#include "support/in_child.hpp"

// Ranks in containers with a common network: one node, but different PID namespaces. fork_test
// covers their death.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

/// Ends the program as skipped if PID namespaces cannot be made.
const bool kPermitted = [] {
  const int number = status_of_child([] { return ::unshare(CLONE_NEWPID) == 0 ? 0 : errno; });
  if (number == 0) return true;
  std::printf("skipped: a PID namespace cannot be made: %s\n", std::strerror(number));
  std::fflush(stdout);
  ::_exit(77);
}();

}  // namespace

TEST_CASE("a rank in another PID namespace is not taken for dead", "[req:1.12]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const auto live = [&] {
      auto comm = join(test_ranks);
      require(comm.lsa_team().size() == 2, "one node");
      add_one(comm);
      std::this_thread::sleep_for(600ms);  // three times the grace period of the monitor
      require_no_error(comm);
      add_one(comm);
      test_ranks.barrier();
    };
    if (test_ranks.first() == 0) return live();
    require(::unshare(CLONE_NEWPID) == 0, "unshare");
    in_child(live);
  }));
}

}  // namespace oriel::test
