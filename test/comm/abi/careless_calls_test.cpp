// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include "support/in_child.hpp"
#include "support/ranks.hpp"

/// Programs that combine calls with threads, forks and resource limits in ways that nccl.h permits.
namespace oriel::test {
namespace {

/// Runs `body` in a child process; a failure there fails the test.
template <class Body>
void alone(const Body& body) {
  check_all_ok(run_ranks(LaunchMode::processes, 1, body));
}

TEST_CASE("a thread that ends within a group leaves the places of its handles alone",
          "[req:1.31]") {
  alone([](TestRanks& test_ranks) {
    ncclComm_t places[2] = {nullptr, nullptr};
    ncclComm_t noted = nullptr;
    const ncclUniqueId id = test_ranks.next_id();
    std::thread([&] {
      require(ncclGroupStart(), "ncclGroupStart");
      require(ncclCommInitRank(&places[0], 1, id, 0), "ncclCommInitRank");
      noted = places[0];
    }).join();
    require(noted != nullptr && places[0] == noted, "the place is as it was");
    int size = 0;
    require(ncclCommCount(noted, &size) == ncclInvalidArgument, "the handle has ended");
  });
}

TEST_CASE("a communicator is finalized once in a group", "[req:1.38]") {
  alone([](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclCommFinalize(comms[0]), "ncclCommFinalize");
    expect_error(ncclCommFinalize(comms[0]), ncclInvalidUsage, "a second ncclCommFinalize",
                 {"the group finalizes this communicator already"});
    require(ncclGroupEnd() == ncclInvalidUsage, "ncclGroupEnd");
    require(ncclCommDestroy(comms[0]), "ncclCommDestroy");
  });
}

TEST_CASE("more CPU ranks than a node can have are refused before any of them starts",
          "[req:1.28]") {
  alone([](TestRanks&) {
    std::vector<ncclComm_t> comms(65'536, nullptr);
    for (const int count : {65, 2'000, 65'536}) {
      expect_error(ncclCommInitAll(comms.data(), count, nullptr), ncclInvalidArgument,
                   "ncclCommInitAll", {std::to_string(count), "at most 64"});
    }
  });
}

TEST_CASE("a thread that is cancelled during a call ends after the call has returned",
          "[req:1.31]") {
  const Environment brief(Variables{{"ORIEL_TIMEOUT", "500ms"}});
  alone([](TestRanks& test_ranks) {
    const ncclUniqueId id = test_ranks.next_id();
    std::atomic<bool> returned{false}, went_on{false};
    std::thread caller([&] {
      ncclComm_t comm = nullptr;
      static_cast<void>(ncclCommInitRank(&comm, 2, id, 0));  // no other rank joins
      returned = true;
      ::pthread_testcancel();
      went_on = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const bool early = returned;
    require(::pthread_cancel(caller.native_handle()) == 0, "pthread_cancel");
    caller.join();
    require(!early && returned && !went_on, "where the thread ended");
  });
}

TEST_CASE("memory may take more descriptors than the soft limit allows", "[req:1.19]") {
  alone([](TestRanks&) {
    constexpr rlim_t kFew = 256;
    rlimit files{};
    require(::getrlimit(RLIMIT_NOFILE, &files) == 0, "getrlimit");
    if (files.rlim_max < 2048) return;  // the limit cannot be raised
    files.rlim_cur = kFew;
    require(::setrlimit(RLIMIT_NOFILE, &files) == 0, "setrlimit");
    std::vector<void*> pointers(2 * kFew, nullptr);
    for (void*& pointer : pointers) require(ncclMemAlloc(&pointer, 4096), "ncclMemAlloc");
    const int own = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    require(own >= 0, "a descriptor of the application's");
    ::close(own);
    for (void* pointer : pointers) require(ncclMemFree(pointer), "ncclMemFree");
  });
}

TEST_CASE("a child that is forked while others allocate can free what it has inherited",
          "[req:1.18]") {
#if defined(__SANITIZE_THREAD__)
  WARN("skipped: the thread sanitizer's own locks may be held in such a child");
  return;
#endif
  alone([](TestRanks&) {
    void* inherited = nullptr;
    require(ncclMemAlloc(&inherited, 4096), "ncclMemAlloc");
    std::atomic<bool> done{false};
    const auto churn = [&] {
      while (!done) {
        void* mine = nullptr;
        if (ncclMemAlloc(&mine, 4096) == ncclSuccess) static_cast<void>(ncclMemFree(mine));
      }
    };
    std::thread one(churn), other(churn);
    std::string wrong;
    for (int i = 0; i < 500 && wrong.empty(); ++i) {
      const int status = status_of_child([&] { return ncclMemFree(inherited); });
      if (status != 0) wrong = "child " + std::to_string(i) + ": " + std::to_string(status);
    }
    done = true;
    one.join();
    other.join();
    require(wrong.empty(), wrong);
    require(ncclMemFree(inherited), "ncclMemFree");
  });
}

}  // namespace
}  // namespace oriel::test
