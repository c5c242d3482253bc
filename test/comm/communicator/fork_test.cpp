// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/api_ranks.hpp"
#include "support/fair_timer.hpp"
#include "support/in_child.hpp"

// Ranks that fork, like programs with data loaders.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

enum Word : std::size_t { kReady, kGo, kSeen };

/// Describes how rank 1 makes the child that outlives it, and how the ranks are separated.
struct ForkCase {
  const char* title;
  bool bare = false;        ///< by clone(), which runs no fork handlers
  bool two_nodes = false;   ///< by ORIEL_HOSTID
  bool namespaced = false;  ///< rank 1 is in another PID namespace
};

/// Returns true in the child.
bool is_child(pid_t made) {
  require(made >= 0, "fork");
  return made == 0;
}

void live_and_die(TestRanks& test_ranks, const ForkCase& fork_case) {
  auto comm = join(test_ranks);
  add_one(comm);
  const auto made = fork_case.bare
                        ? ::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)
                        : static_cast<long>(::fork());
  if (is_child(static_cast<pid_t>(made))) {
    for (int i = 0; test_ranks.word(kSeen) == 0 && i < 10'000; ++i) ::usleep(1000);
    ::_exit(0);
  }
  test_ranks.word(kReady) = 1;
  test_ranks.await(kGo);
  ::kill(::getpid(), SIGKILL);
}

/// Runs the rank as a child of the first process of a new PID namespace. All processes of the
/// namespace end with its first process.
void live_in_namespace(TestRanks& test_ranks, const ForkCase& fork_case) {
  require(::unshare(CLONE_NEWPID) == 0, "unshare");
  const pid_t first = ::fork();
  if (is_child(first)) {
    const pid_t rank = ::fork();
    if (is_child(rank)) live_and_die(test_ranks, fork_case);
    ::waitpid(rank, nullptr, 0);
    for (int i = 0; test_ranks.word(kSeen) == 0 && i < 10'000; ++i) ::usleep(1000);
    ::_exit(0);
  }
  ::waitpid(first, nullptr, 0);
}

void see_the_death(TestRanks& test_ranks) {
  auto comm = join(test_ranks);
  add_one(comm);
  test_ranks.await(kReady);
  FairTimer timer;
  timer.restart();
  test_ranks.word(kGo) = 1;
  std::optional<Error> error;
  while (!error && timer.spent() < 1s) {
    std::this_thread::sleep_for(1ms);
    error = comm.async_error();
  }
  test_ranks.word(kSeen) = 1;
  require(error && error->origin_rank() == 1, error ? error->to_string() : "not seen");
}

bool may_make_namespaces() {
  return status_of_child([] { return ::unshare(CLONE_NEWPID); }) == 0;
}

}  // namespace

TEST_CASE("the death of a rank is seen within a second though a child of it lives on",
          "[req:1.12]") {
  const ForkCase cases[] = {
      {.title = "one node"},
      {.title = "two nodes of one machine", .two_nodes = true},
      {.title = "no handler in the child", .bare = true},
      {.title = "no handler in the child, two nodes", .bare = true, .two_nodes = true},
      {.title = "another PID namespace", .namespaced = true},
      {.title = "another PID namespace, two nodes", .two_nodes = true, .namespaced = true},
  };
  for (const ForkCase& fork_case : cases) {
    CAPTURE(fork_case.title);
    if (fork_case.namespaced && !may_make_namespaces()) {
      WARN("not tried: a PID namespace cannot be made");
      continue;
    }
    const auto results = run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
      const char* const host = test_ranks.first() == 0 ? "a" : "b";
      const Environment named(Variables{{"ORIEL_HOSTID", fork_case.two_nodes ? host : ""}});
      if (test_ranks.first() == 0) return see_the_death(test_ranks);
      return fork_case.namespaced ? live_in_namespace(test_ranks, fork_case)
                                  : live_and_die(test_ranks, fork_case);
    });
    CHECK(results.front() == "ok");
  }
}

TEST_CASE("a forked child cannot act on its parent's communicator", "[req:1.12]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    const ncclComm_t comm = comms.front();
    Buffer memory(4096);
    auto* const values = reinterpret_cast<float*>(memory.at());
    auto windows = test_ranks.register_windows(comms, {memory.at()}, 4096);
    const auto sum = [&] {
      *values = 1;
      require(ncclAllReduce(values, values, 1, ncclFloat, ncclSum, comm, nullptr), "the sum");
      require(*values == 2, "the sum's value");
    };
    sum();
    in_child([&] {
      const std::vector<std::string> words{"forked from", "ncclCommInitRank after the fork"};
      ncclWindow_t window = nullptr;
      ncclResult_t state = ncclSuccess;
      Buffer own(4096);
      float value = 1;
      const auto refused = [&](ncclResult_t result, const char* what) {
        expect_error(result, ncclInvalidUsage, what, words);
      };
      refused(ncclCommAbort(comm), "abort");
      refused(ncclCommFinalize(comm), "finalize");
      refused(ncclCommGetAsyncError(comm, &state), "state");
      refused(ncclCommWindowRegister(comm, own.at(), 4096, &window, 0), "register");
      refused(ncclCommWindowDeregister(comm, windows.front()), "deregister");
      refused(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr), "all-reduce");
      auto borrowed = oriel::Communicator::borrow(comm);
      must_fail(borrowed, ErrorCode::invalid_usage, words);
      require(ncclCommDestroy(comm), "destroy");
      require(ncclMemFree(memory.at()), "free");
      expect_error(ncclCommDestroy(comm), ncclInvalidArgument, "destroy it again");
    });
    sum();
    require(state_of(comm), "the state of the parent's communicator");
    for (ncclWindow_t window : windows) require(ncclCommWindowDeregister(comm, window), "the end");
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("a forked child's objects of the C++ interface leave the parent's alone", "[req:1.12]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    std::optional<Communicator> comm = join(test_ranks);
    std::optional<oriel::Buffer> memory = must(comm->allocate(4096));
    std::optional<Window> window = must(comm->register_window(*memory));
    in_child([&] {
      int value = 1;
      must_fail(comm->all_reduce({.input = &value, .output = &value, .count = 1}),
                ErrorCode::invalid_usage, {"forked from"});
      require(comm->async_error().has_value(), "an error");
      comm->abort();
      window.reset();
      memory.reset();
      comm.reset();
    });
    add_one(*comm);
    require_no_error(*comm);
    test_ranks.barrier();
  }));
}

TEST_CASE("memory from before a fork cannot be registered by the child", "[req:1.18]") {
#if defined(__SANITIZE_THREAD__)
  WARN("skipped: the thread sanitizer lets no child of a process with threads start any");
  return;
#endif
  check_all_ok(run_ranks(LaunchMode::threads, 1, [](TestRanks& test_ranks) {
    Buffer memory(4096);
    *memory.at() = std::byte{1};
    in_child([&] {
      const std::vector<std::string> words{"before this process was forked", "ncclMemAlloc"};
      auto comms = test_ranks.init();
      ncclWindow_t window = nullptr;
      expect_error(ncclCommWindowRegister(comms.front(), memory.at(), 4096, &window, 0),
                   ncclInvalidUsage, "register", words);
      *memory.at() = std::byte{2};
      require(ncclMemFree(memory.at()), "free");
    });
    require(*memory.at() == std::byte{2}, "the memory is still here");
    auto comms = test_ranks.init();
    test_ranks.register_windows(comms, {memory.at()}, 4096);
    test_ranks.destroy(comms);
  }));
}

}  // namespace oriel::test
