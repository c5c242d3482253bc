// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/ranks.hpp"

/// Several ranks in one thread, groups and their errors, and non-blocking communicators.
namespace oriel::test {
namespace {

TEST_CASE("ncclCommInitAll makes all ranks in one thread", "[req:1.10]") {
  run_alone([] {
    for (const int ranks : {1, 2, 5}) {
      std::vector<ncclComm_t> comms(static_cast<std::size_t>(ranks));
      require(ncclCommInitAll(comms.data(), ranks, nullptr), "ncclCommInitAll");
      for (int rank = 0; rank < ranks; ++rank) {
        const ncclComm_t comm = comms[static_cast<std::size_t>(rank)];
        int value = -1;
        require(ncclCommUserRank(comm, &value), "ncclCommUserRank");
        require(value == rank, "the rank");
        require(ncclCommCount(comm, &value), "ncclCommCount");
        require(value == ranks, "the count");
      }
      require_sum(comms);
      destroy(comms);
    }
    ncclComm_t comm = nullptr;
    const int devices[] = {0};
    expect_error(ncclCommInitAll(nullptr, 1, nullptr), ncclInvalidArgument, "null", {"null"});
    expect_error(ncclCommInitAll(&comm, 0, nullptr), ncclInvalidArgument, "no rank", {"0"});
    expect_error(ncclCommInitAll(&comm, 1, devices), ncclInvalidArgument, "devices", {"devlist"});
    require(comm == nullptr, "a failed init leaves null");
  });
}

TEST_CASE("calls in nested groups run when the outermost group ends", "[req:1.10]") {
  run_alone([] {
    expect_error(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupEnd alone", {"ncclGroupStart"});
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclGroupEnd(), "an empty group");
    ncclComm_t comms[2];
    require(ncclCommInitAll(comms, 2, nullptr), "ncclCommInitAll");
    float data[2] = {1, 2};
    require(ncclGroupStart(), "ncclGroupStart");
    require(sum(&data[0], 1, comms[0]), "note");
    require(ncclGroupStart(), "ncclGroupStart");
    require(sum(&data[1], 1, comms[1]), "note");
    require(ncclGroupEnd(), "the inner end");
    require(data[0] == 1 && data[1] == 2, "nothing has run yet");
    require(ncclGroupEnd(), "the outer end");
    require(data[0] == 3 && data[1] == 3, "the sum");
    // The windows are stored at ncclGroupEnd.
    Buffer first(8192), second(8192);
    ncclWindow_t windows[4] = {};
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclCommWindowRegister(comms[0], first.at(), 4096, &windows[0], 1), "note");
    require(ncclCommWindowRegister(comms[1], second.at(), 4096, &windows[1], 1), "note");
    require(ncclCommWindowRegister(comms[0], first.at(4096), 4096, &windows[2], 1), "note");
    require(ncclCommWindowRegister(comms[1], second.at(4096), 4096, &windows[3], 1), "note");
    require(windows[0] == nullptr, "not yet");
    require(ncclGroupEnd(), "ncclGroupEnd");
    for (ncclWindow_t window : windows) require(window != nullptr, "a window");
    for (int i = 0; i < 4; ++i) {
      require(ncclCommWindowDeregister(comms[i % 2], windows[i]), "deregister");
    }
    destroy(comms);
  });
}

TEST_CASE("calls in one group run in their order on each communicator", "[req:1.10]") {
  run_in_all_modes(3, [](TestRanks& test_ranks) {
    auto first = test_ranks.init();
    auto second = test_ranks.init();
    std::vector<std::vector<float>> data;
    for (std::size_t i = 0; i < first.size(); ++i) data.emplace_back(40, 1.0f);
    require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t i = 0; i < first.size(); ++i) {
      // Each call reduces one element. Later calls use results of earlier calls of the
      // communicator.
      for (std::size_t k = 0; k < 20; ++k) {
        require(sum(&data[i][k], 1, first[i]), "note");
        require(sum(&data[i][k], 1, first[i]), "note");
        require(sum(&data[i][20 + k], 1, second[i]), "note");
      }
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
    for (const auto& mine : data) {
      for (std::size_t k = 0; k < 40; ++k) require(mine[k] == (k < 20 ? 9.0f : 3.0f), "the sum");
    }
    test_ranks.destroy(first);
    test_ranks.destroy(second);
  });
}

TEST_CASE("an error inside a group is returned at its end, and the thread goes on", "[req:1.38]") {
  run_alone([] {
    ncclComm_t comms[2];
    require(ncclCommInitAll(comms, 2, nullptr), "ncclCommInitAll");
    float data[1] = {1};
    require(ncclGroupStart(), "ncclGroupStart");
    expect_error(ncclAllReduce(data, data, 1, ncclFloat, ncclNumOps, comms[0], nullptr),
                 ncclInvalidArgument, "the bad call", {"reduction"});
    expect_error(ncclGroupEnd(), ncclInvalidArgument, "ncclGroupEnd", {"reduction"});
    require_sum(comms);
    // An invalid rank makes the group fail at once, not at the deadline of set-up.
    const ncclUniqueId id = new_id();
    ncclComm_t more[2] = {};
    const auto started = std::chrono::steady_clock::now();
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclCommInitRank(&more[0], 2, id, 0), "note");
    expect_error(ncclCommInitRank(&more[1], 2, id, 2), ncclInvalidArgument, "rank 2 of 2");
    expect_error(ncclGroupEnd(), ncclInvalidArgument, "ncclGroupEnd", {"rank 2 of 2"});
    require(std::chrono::steady_clock::now() - started < 15s,
            "the group waited for a refused rank");
    require(more[0] == nullptr && more[1] == nullptr, "a failed init leaves null");
    destroy(comms);
  });
}

TEST_CASE("a group in which one all-reduce is refused makes none, and ends at once",
          "[req:1.38][req:1.33]") {
  run_alone([] {
    ncclComm_t comms[2];
    require(ncclCommInitAll(comms, 2, nullptr), "ncclCommInitAll");
    for (const bool bad_type : {true, false}) {
      for (const bool bad_first : {true, false}) {
        float data[2][8] = {{1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2, 2, 2}};
        require(ncclGroupStart(), "ncclGroupStart");
        if (!bad_first) require(sum(data[1], 4, comms[1]), "note");
        expect_error(ncclAllReduce(bad_type ? data[0] : nullptr, data[0], 4,
                                   bad_type ? ncclNumTypes : ncclFloat, ncclSum, comms[0], nullptr),
                     ncclInvalidArgument, "the bad call");
        if (bad_first) require(sum(data[1], 4, comms[1]), "note");
        expect_error(ncclGroupEnd(), ncclInvalidArgument, "ncclGroupEnd");
        require(data[0][0] == 1 && data[1][0] == 2, "nothing has run");
      }
    }
    require_sum(comms);
    float data[2] = {1, 2};
    // An error that arises after the call was noted is found before the first call runs.
    require(ncclGroupStart(), "ncclGroupStart");
    require(sum(&data[0], 1, comms[0]), "note");
    require(sum(&data[1], 1, comms[1]), "note");
    std::thread([&] { require(ncclCommAbort(comms[0]), "ncclCommAbort"); }).join();
    require(ncclGroupEnd() != ncclSuccess, "one rank has been aborted");
    require(ncclCommDestroy(comms[1]), "ncclCommDestroy");
  });
}

TEST_CASE(
    "starts and registrations of a refused group fail on the other ranks, its ends do nothing",
    "[req:1.38]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    auto comms = test_ranks.init();
    const bool bad = test_ranks.first() == 1;
    const ncclUniqueId id = test_ranks.next_id();
    Buffer buffer(4096);
    ncclWindow_t window = nullptr;
    ncclComm_t more = nullptr;
    const auto in_group = [&](const std::function<ncclResult_t()>& call) {
      if (!bad) return call();
      require(ncclGroupStart(), "ncclGroupStart");
      require(call(), "note");
      float* const data = reinterpret_cast<float*>(buffer.at(1));
      expect_error(sum(data, 1, comms[0]), ncclInvalidArgument, "the bad call");
      return ncclGroupEnd();
    };
    const auto started = std::chrono::steady_clock::now();
    const std::vector<std::string> words = {"rank 1", "not aligned"};
    const std::vector<std::string>& own = bad ? std::vector<std::string>{"not aligned"} : words;
    expect_error(
        in_group([&] { return ncclCommWindowRegister(comms[0], buffer.at(), 4096, &window, 1); }),
        ncclInvalidArgument, "ncclCommWindowRegister", own);
    require(window == nullptr, "a window was given out");
    if (bad) {  // the error ends nothing
      expect_error(in_group([&] { return ncclCommFinalize(comms[0]); }), ncclInvalidArgument,
                   "ncclCommFinalize", own);
    }
    expect_error(in_group([&] { return ncclCommInitRank(&more, 2, id, test_ranks.first()); }),
                 ncclInvalidArgument, "ncclCommInitRank", own);
    require(more == nullptr, "a failed init leaves null");
    require(std::chrono::steady_clock::now() - started < 15s, "somebody waited in vain");
    float value = 1;
    require(sum(&value, 1, comms[0]), "the communicator is as good as before");
    require(value == 2, "the sum");
    test_ranks.destroy(comms);
  }));
}

TEST_CASE("a non-blocking init that fails says why", "[req:1.31]") {
  Environment environment(Variables{{"ORIEL_TIMEOUT", "300ms"}});
  run_alone([] {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    const ncclResult_t started = ncclCommInitRankConfig(&comm, 2, new_id(), 0, &config);
    require(started == ncclInProgress, "init");
    const ncclResult_t state = settled_state(comm);
    require(state != ncclSuccess && state != ncclInProgress, "the other rank never came");
    require_words(ncclGetLastError(comm), {"1"});
    float value = 1;
    require(sum(&value, 1, comm) == state, "a call on what has failed");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

TEST_CASE("a group starts blocking or non-blocking communicators, not both", "[req:1.31]") {
  run_alone([] {
    ncclConfig_t later = non_blocking();
    std::array<ncclComm_t, 2> comms{};
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclCommInitRank(&comms[0], 1, new_id(), 0), "init");
    require(ncclCommInitRankConfig(&comms[1], 1, new_id(), 0, &later), "init");
    expect_error(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupEnd", {"non-blocking"});
    require(comms[0] == nullptr && comms[1] == nullptr, "handles are left");
  });
}

TEST_CASE("eight threads of a process get right sums on each of fifty communicators",
          "[req:1.10]") {
  check_all_ok(run_ranks(
      LaunchMode::threads, 8,
      [](TestRanks& test_ranks) {
        std::vector<std::vector<ncclComm_t>> all;
        for (int i = 0; i < 50; ++i) all.push_back(test_ranks.init());
        for (auto& comms : all) {
          std::vector<float> data(1000, 1.0f);
          require(sum(data.data(), data.size(), comms[0]), "ncclAllReduce");
          require(data.front() == 8 && data.back() == 8, "the sum");
        }
        for (auto& comms : all) test_ranks.destroy(comms);
      },
      100s));
}

}  // namespace
}  // namespace oriel::test
