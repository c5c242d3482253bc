// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/communicator/random_all_reduces.hpp"
#include "comm/support/in_teams.hpp"
#include "comm/support/stall_log.hpp"
#include "support/process_state.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Sends and receives through the C interface, alone and in groups.
namespace oriel::test {

using namespace std::chrono_literals;

TEST_CASE("a sender on another node may leave before its message is received", "[req:5.11]") {
  check_all_ok(run_ranks(LaunchMode::processes, 3, [](TestRanks& test_ranks) {
    const Environment own(of_node(test_ranks.first()));
    auto comms = test_ranks.init();
    const int rank = test_ranks.first();
    // Fits into the channel's ring of 8 slots: a send of this size need not wait for the receiver.
    std::vector<int> data(7 * 64 * 1024 / sizeof(int), rank);
    if (rank == 0) {
      require(ncclSend(data.data(), data.size(), ncclInt, 1, comms[0], nullptr), "ncclSend");
      test_ranks.destroy(comms);
      return;
    }
    std::this_thread::sleep_for(500ms);
    if (rank == 1) {
      require(ncclRecv(data.data(), data.size(), ncclInt, 0, comms[0], nullptr), "ncclRecv");
      require(std::count(data.begin(), data.end(), 0) == std::ssize(data), "what was sent");
    }
    // A long wait probes the NICs of ranks that have not left. No rank may be taken for dead.
    if (rank == 2) std::this_thread::sleep_for(2500ms);
    const ncclResult_t done = rank == 1 ? ncclRecv(data.data(), 1, ncclInt, 2, comms[0], nullptr)
                                        : ncclSend(data.data(), 1, ncclInt, 1, comms[0], nullptr);
    require(done, "a message between those that are left");
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("a send between two nodes needs no word of a third rank", "[req:5.11]") {
  check_all_ok(run_ranks(LaunchMode::processes, 3, [](TestRanks& test_ranks) {
    const Environment own(of_node(test_ranks.first()));
    auto comms = test_ranks.init();
    int value = 7 * test_ranks.first();
    if (test_ranks.first() == 0)
      require(ncclRecv(&value, 1, ncclInt, 1, comms[0], nullptr), "recv");
    if (test_ranks.first() == 1)
      require(ncclSend(&value, 1, ncclInt, 0, comms[0], nullptr), "send");
    require(value == (test_ranks.first() == 2 ? 14 : 7), "what was received");
    test_ranks.barrier();  // the third rank has called nothing
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("a rank alone sends to itself in a group, the data arrive", "[req:5.10]") {
  check_all_ok(run_ranks(LaunchMode::processes, 1, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    int sent[3] = {1, 2, 3}, received[3] = {};
    require(ncclGroupStart(), "ncclGroupStart");
    for (int i = 0; i < 3; ++i) {
      require(ncclRecv(&received[i], 1, ncclInt, 0, comms[0], nullptr), "ncclRecv");
      require(ncclSend(&sent[i], 1, ncclInt, 0, comms[0], nullptr), "ncclSend");
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
    require(std::equal(sent, sent + 3, received), "what was received");
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("sends outside a group that fit into a channel end before their receives, in order",
          "[req:5.10]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    const int other = 1 - test_ranks.first();
    int theirs[4] = {};
    for (int i = 0; i < 4; ++i) {
      const int value = 10 * test_ranks.first() + i;
      require(ncclSend(&value, 1, ncclInt, other, comms[0], nullptr), "ncclSend");
    }
    test_ranks.barrier();  // both ranks have sent, and none has received
    for (int i = 0; i < 4; ++i) {
      require(ncclRecv(&theirs[i], 1, ncclInt, other, comms[0], nullptr), "ncclRecv");
      require(theirs[i] == 10 * other + i, "in the order of the calls");
    }
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("one group of two communicators delivers on both", "[req:5.10]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto first = test_ranks.init();
    auto second = test_ranks.init();
    const int other = 1 - test_ranks.first();
    const std::size_t count = 300'000;
    std::vector<int> sent(count, 100 + test_ranks.first()), received[2];
    for (auto& one : received) one.assign(count, 0);
    require(ncclGroupStart(), "ncclGroupStart");
    // Ranks may name the communicators in different orders.
    for (const int i : {test_ranks.first(), other}) {
      ncclComm_t comm = i == 0 ? first[0] : second[0];
      require(ncclSend(sent.data(), count, ncclInt, other, comm, nullptr), "ncclSend");
      require(ncclRecv(received[i].data(), count, ncclInt, other, comm, nullptr), "ncclRecv");
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
    for (const auto& one : received) {
      require(std::count(one.begin(), one.end(), 100 + other) == static_cast<long>(count),
              "what was received");
    }
    test_ranks.destroy(first);
    test_ranks.destroy(second);
  }));
}

TEST_CASE(
    "a wrong argument of a send or receive is refused by name, nothing of the group is started",
    "[req:5.10]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    ncclComm_t comm = comms[0];
    float data[4] = {1, 2, 3, 4};
    if (test_ranks.first() == 0) {
      const auto refused = [](ncclResult_t result, const std::vector<std::string>& words) {
        expect_error(result, ncclInvalidArgument, "a wrong call", words);
      };
      refused(ncclSend(data, 1, ncclFloat, 2, comm, nullptr),
              {"a send", "peer is 2, but ranks go from 0 to 1"});
      refused(ncclRecv(data, 1, ncclFloat, -1, comm, nullptr), {"a receive", "peer is -1"});
      refused(ncclSend(nullptr, 1, ncclFloat, 1, comm, nullptr), {"sendbuff is null"});
      refused(ncclRecv(nullptr, 1, ncclFloat, 1, comm, nullptr), {"recvbuff is null"});
      refused(ncclSend(data, SIZE_MAX / 16, ncclFloat, 1, comm, nullptr), {"larger than memory"});
      refused(ncclSend(data, 1, ncclNumTypes, 1, comm, nullptr), {"datatype is 12"});
      refused(ncclSend(data, 1, ncclFloat, 1, comm, reinterpret_cast<cudaStream_t>(data)),
              {"the stream is not null"});
      expect_error(ncclSend(data, 1, ncclFloat, 0, comm, nullptr), ncclInvalidUsage,
                   "a send to itself", {"sends 1 messages to itself and receives 0"});
      // A refused call cancels its group, whose earlier sends have no effect.
      require(ncclGroupStart(), "ncclGroupStart");
      require(ncclSend(data, 1, ncclFloat, 1, comm, nullptr), "a right call");
      refused(ncclSend(data, 1, ncclFloat, 7, comm, nullptr), {"peer is 7"});
      expect_error(ncclGroupEnd(), ncclInvalidArgument, "the group", {"peer is 7"});
      // A send to itself without a receive also cancels the group; only ncclGroupEnd can detect it.
      require(ncclGroupStart(), "ncclGroupStart");
      require(ncclSend(data, 1, ncclFloat, 1, comm, nullptr), "a right call");
      require(ncclSend(data, 1, ncclFloat, 0, comm, nullptr), "a send to itself");
      expect_error(ncclGroupEnd(), ncclInvalidUsage, "the group", {"to itself"});
    }
    test_ranks.barrier();
    if (test_ranks.first() == 0) {
      require(ncclSend(data + 3, 1, ncclFloat, 1, comm, nullptr), "ncclSend");
    } else {
      require(ncclRecv(data, 1, ncclFloat, 0, comm, nullptr), "ncclRecv");
      require(data[0] == 4, "only what was sent at last");
    }
    require(ncclSend(nullptr, 0, ncclFloat, 1 - test_ranks.first(), comm, nullptr), "no elements");
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclSend(nullptr, 0, ncclFloat, test_ranks.first(), comm, nullptr), "to itself");
    require(ncclRecv(data, 0, ncclFloat, test_ranks.first(), comm, nullptr), "from itself");
    require(ncclGroupEnd(), "no elements to itself");
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("a failed query inside a group does not cancel it, a refused collective does",
          "[req:5.10]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    float value = 1;
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comms[0], nullptr), "all-reduce");
    expect_error(ncclCommCount(comms[0], nullptr), ncclInvalidArgument, "a query",
                 {"count is null"});
    expect_error(ncclCommUserRank(nullptr, nullptr), ncclInvalidArgument, "a query", {});
    expect_error(ncclMemFree(&value), ncclInvalidArgument, "ncclMemFree", {});
    require(ncclGroupEnd(), "the group");
    require(value == 2, "the sum");
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comms[0], nullptr), "all-reduce");
    expect_error(ncclAllReduce(nullptr, &value, 1, ncclFloat, ncclSum, comms[0], nullptr),
                 ncclInvalidArgument, "a refused call", {"sendbuff is null"});
    expect_error(ncclGroupEnd(), ncclInvalidArgument, "the group", {"sendbuff is null"});
    require(value == 2, "nothing was added");
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("a send and a receive of different sizes get an error that names both ranks",
          "[req:5.10]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    std::vector<float> data(1000);
    ncclResult_t done = ncclSuccess;
    if (test_ranks.first() == 0) {
      done = ncclSend(data.data(), 1000, ncclFloat, 1, comms[0], nullptr);
      if (done == ncclSuccess) done = await_failure(comms[0]);
    } else {
      done = ncclRecv(data.data(), 999, ncclFloat, 0, comms[0], nullptr);
    }
    require(done != ncclSuccess, "it failed");
    require_words(ncclGetLastError(comms[0]), {"ranks 1 and 0 are in different calls"});
    test_ranks.barrier();
    test_ranks.destroy(comms);
  }));
}

namespace {

constexpr std::size_t kIsWaiting = 0, kMayGoOn = 1;  // indices of SharedState::words

/// Each rank exchanges messages in one group. Rank 2 starts its group late, so rank 0 waits.
void be_late_with_a_send(TestRanks& test_ranks) {
  auto comms = test_ranks.init();
  float data[3] = {1, 2, 3}, received[3] = {};
  test_ranks.barrier();
  if (test_ranks.first() == 0) test_ranks.word(kIsWaiting) = 1;
  if (test_ranks.first() == 2) test_ranks.await(kMayGoOn);
  require(ncclGroupStart(), "ncclGroupStart");
  if (test_ranks.first() == 0) {
    require(ncclSend(data, 3, ncclFloat, 1, comms[0], nullptr), "ncclSend");
    require(ncclSend(data, 3, ncclFloat, 2, comms[0], nullptr), "ncclSend");
    require(ncclRecv(received, 3, ncclFloat, 2, comms[0], nullptr), "ncclRecv");
  } else {
    require(ncclRecv(received, 3, ncclFloat, 0, comms[0], nullptr), "ncclRecv");
    if (test_ranks.first() == 2) {
      require(ncclSend(data, 3, ncclFloat, 0, comms[0], nullptr), "ncclSend");
    }
  }
  require(ncclGroupEnd(), "ncclGroupEnd");
  require(received[2] == 3, "what was received");
  test_ranks.destroy(comms);
}

}  // namespace

TEST_CASE("a receive that waits long says so, with the group and the peer", "[req:5.10][D7]") {
  const StallLog log;
  RankFixture fixture(LaunchMode::processes, 3, be_late_with_a_send);
  REQUIRE(fixture.wait_for_word(kIsWaiting, 1, 30s));
  const pid_t pid = fixture.pid(0);
  CHECK(eventually([&] { return !log.lines(pid).empty(); }));
  const auto lines = log.lines(pid);
  CHECK(log.lines(fixture.pid(1)).empty());
  fixture.shared().words[kMayGoOn] = 1;
  check_all_ok(fixture.collect(30s));
  REQUIRE(!lines.empty());
  CAPTURE(lines.front());
  CHECK_NOTHROW(require_words(
      lines.front(), {"stalled: rank 0", "in a group of 2 sends and 1 receives for rank 2 (",
                      "; rank 2 is in no call; hint: "}));
}

TEST_CASE("two ranks that wait for each other say what each of them is in", "[req:5.3][D7]") {
  const StallLog log;
  RankFixture fixture(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    std::thread ender([&] {
      test_ranks.await(kMayGoOn);
      require(ncclCommAbort(comms[0]), "ncclCommAbort");
    });
    float received = 0;
    const int other = 1 - test_ranks.first();
    const auto done = ncclRecv(&received, 1, ncclFloat, other, comms[0], nullptr);
    ender.join();
    require(done != ncclSuccess, "nothing was sent");
  });
  const pid_t pid = fixture.pid(0);
  CHECK(eventually([&] { return log.lines(pid).size() >= 2; }));
  fixture.shared().words[kMayGoOn] = 1;
  check_all_ok(fixture.collect(30s));
  const auto lines = log.lines(pid);
  REQUIRE(!lines.empty());
  CAPTURE(lines.back());
  CHECK_NOTHROW(require_words(lines.back(), {"in a receive from rank 1 for rank 1 (",
                                             "; rank 1 is in a receive from rank 0; hint: "}));
}

TEST_CASE("an abort ends a send and a receive that wait, on both ranks",
          "[req:5.10][req:5.11][req:1.12]") {
  const bool sends = GENERATE(true, false);
  const int nodes = GENERATE(1, 2);
  INFO((sends ? "a send" : "a receive") << ", " << nodes << " nodes");
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    const Environment own(of_node(test_ranks.first() % nodes));
    auto comms = test_ranks.init();
    std::vector<float> data(4'000'000);  // more than a channel's ring holds
    if (test_ranks.first() == 0) {
      std::thread thread([&] {
        std::this_thread::sleep_for(300ms);
        require(ncclCommAbort(comms[0]), "ncclCommAbort");
      });
      const ncclResult_t done =
          sends ? ncclSend(data.data(), data.size(), ncclFloat, 1, comms[0], nullptr)
                : ncclRecv(data.data(), data.size(), ncclFloat, 1, comms[0], nullptr);
      thread.join();
      expect_error(done, ncclInvalidUsage, "the call", {"ncclCommAbort was called"});
    } else {
      require(await_failure(comms[0]) == ncclRemoteError, "the other rank's abort");
      test_ranks.destroy(comms);
    }
  }));
}

}  // namespace oriel::test
