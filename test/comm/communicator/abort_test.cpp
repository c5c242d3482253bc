// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <csignal>
#include <span>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/wait.h>

#include "nccl.h"

#include "comm/group/comm_entry.hpp"
#include "comm/support/held.hpp"
#include "support/fair_timer.hpp"
#include "support/ranks.hpp"
#include "support/stop_at_message.hpp"

/// Checks that an abort by this or another rank ends a registration that waits for a stopped rank.
/// Also checks that an abort late in a start ends the communicator.
namespace oriel::test {
namespace {

// Indices of the words of SharedState.
constexpr std::size_t kMayAbort = 0;    // set when the aborting rank may abort
constexpr std::size_t kCallsEnded = 1;  // counts ranks whose call has ended

bool wait_for_stop(pid_t pid) {
  return eventually(
      [pid] {
        siginfo_t info{};
        const auto id = static_cast<id_t>(pid);
        const int seen = ::waitid(P_PID, id, &info, WSTOPPED | WNOHANG | WNOWAIT);
        return seen == 0 && info.si_pid == pid;
      },
      30s);
}

/// Rank 1 of three is stopped while it sends its descriptors; then rank `aborter` aborts.
void register_beside_a_stop(TestRanks& test_ranks, int aborter) {
  const Held before = settled();
  {
    auto comms = test_ranks.init();
    Buffer buffer(65536);
    ncclWindow_t window = nullptr;
    const auto call = [&] {
      return ncclCommWindowRegister(comms[0], buffer.at(), 65536, &window, 1);
    };
    test_ranks.barrier();
    if (test_ranks.first() == 1) {
      const StopAtMessage stop(1, StopAtMessage::Counts::with_descriptors);
      expect_error(call(), ncclRemoteError, "the call that slept", {});
      test_ranks.destroy(comms);
    } else if (test_ranks.first() == aborter) {
      std::thread thread([&] {
        test_ranks.await(kMayAbort);
        require(ncclCommAbort(comms[0]), "ncclCommAbort");
      });
      const ncclResult_t result = call();
      ++test_ranks.word(kCallsEnded);
      thread.join();
      expect_error(result, ncclInvalidUsage, "the registration", {"ncclCommAbort was called"});
    } else {
      const ncclResult_t result = call();
      ++test_ranks.word(kCallsEnded);
      expect_error(result, ncclRemoteError, "the registration beside an abort",
                   {"ncclCommAbort was called", aborter == 0 ? "rank 0" : "rank 2"});
      test_ranks.destroy(comms);
    }
    require(window == nullptr, "there can be no window");
  }
  require_held(before, "after the abort");
}

TEST_CASE("an abort ends a registration that waits for the descriptors of a stopped rank",
          "[req:1.12]") {
  for (const int aborter : {0, 2}) {
    INFO("rank " << aborter << " aborts");
    RankFixture fixture(LaunchMode::processes, 3,
                        [&](TestRanks& p) { register_beside_a_stop(p, aborter); });
    REQUIRE(wait_for_stop(fixture.pid(1)));
    std::this_thread::sleep_for(300ms);  // lets the other ranks reach the same exchange
    CHECK(fixture.shared().words[kCallsEnded] == 0);
    const FairTimer timer;
    fixture.shared().words[kMayAbort] = 1;
    CHECK(fixture.wait_for_word(kCallsEnded, 2, 60s));
    CHECK(timer.spent() < 5s);  // ORIEL_TIMEOUT is 30 s
    fixture.kill(1, SIGCONT);
    check_all_ok(fixture.collect(60s));
  }
}

TEST_CASE("an abort between the last wait of a start and its outcome ends the communicator",
          "[req:1.12][D11]") {
  run_alone([] {
    const ncclUniqueId id = new_id();
    comm::JoinRequest request;
    request.id = boot::UniqueId::decode(std::as_bytes(std::span(id.internal))).value();
    request.device = &comm::host_device();
    auto loop = EventLoop::create();
    require(loop.ok(), "a loop");
    comm::CommEntry entry(0, 1, -1, true);
    entry.works_in(&loop.value());
    auto joined = loop->run(comm::Communicator::join(loop.value(), std::move(request)));
    entry.works_in(nullptr);
    require(joined.ok(), "the start");
    const auto communicator = joined.value();
    entry.abort(Error(ErrorCode::aborted, "late"));
    const Status outcome = entry.finished(std::move(joined));
    require(!outcome.ok() && outcome.error().code() == ErrorCode::aborted, "the outcome");
    require(communicator->async_error().has_value(), "the communicator goes on");
    require(!entry.communicator().ok() && !entry.in_progress(), "the entry");
  });
}

}  // namespace
}  // namespace oriel::test
