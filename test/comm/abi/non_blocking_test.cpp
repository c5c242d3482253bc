// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/ranks.hpp"

/// Non-blocking communicators, whose calls continue in the background.
namespace oriel::test {
namespace {

using std::chrono::steady_clock;

void require_success(ncclComm_t comm, const char* what) {
  const ncclResult_t state = settled_state(comm);
  require(state == ncclSuccess, fmt::format("{}: {}: {}", what, state, ncclGetLastError(comm)));
}

void require_in_progress(ncclResult_t result, const char* what) {
  require(result == ncclInProgress,
          fmt::format("{} returned {}: {}", what, result, ncclGetLastError(nullptr)));
}

ncclComm_t begin_init(const ncclUniqueId& id, int size, int rank) {
  ncclConfig_t config = non_blocking();
  ncclComm_t comm = nullptr;
  require_in_progress(ncclCommInitRankConfig(&comm, size, id, rank, &config), "init");
  return comm;
}

/// Starts both ranks of a non-blocking communicator from this thread, one after the other.
std::array<ncclComm_t, 2> init_pair() {
  const ncclUniqueId id = new_id();
  const std::array<ncclComm_t, 2> comms = {begin_init(id, 2, 0), begin_init(id, 2, 1)};
  for (ncclComm_t comm : comms) require_success(comm, "init");
  return comms;
}

void finalize(const std::array<ncclComm_t, 2>& comms) {
  for (ncclComm_t comm : comms) require_in_progress(ncclCommFinalize(comm), "ncclCommFinalize");
  for (ncclComm_t comm : comms) require_success(comm, "finalize");
}

TEST_CASE("one thread registers, finalizes and destroys two non-blocking ranks in turn",
          "[req:1.31]") {
  run_alone([] {
    const auto comms = init_pair();
    const Buffer first(8192), second(8192);
    const std::array<void*, 2> buffers = {first.at(), second.at()};
    std::array<ncclWindow_t, 2> windows{};
    for (std::size_t i = 0; i < 2; ++i) {
      require_in_progress(ncclCommWindowRegister(comms[i], buffers[i], 4096, &windows[i], 1),
                          "ncclCommWindowRegister");
    }
    for (ncclComm_t comm : comms) require_success(comm, "registration");
    require(windows[0] != nullptr && windows[1] != nullptr, "windows");
    require_sum(comms);
    for (std::size_t i = 0; i < 2; ++i) {
      require(ncclCommWindowDeregister(comms[i], windows[i]), "ncclCommWindowDeregister");
    }
    const auto started = steady_clock::now();
    finalize(comms);
    require(steady_clock::now() - started < 15s, "one rank's finalize waited for the other's");
    for (ncclComm_t comm : comms) {
      expect_error(sum(nullptr, 1, comm), ncclInvalidUsage, "after finalize", {"finalized"});
      require(ncclCommDestroy(comm), "ncclCommDestroy");
    }
  });
}

TEST_CASE("calls on a communicator in progress are refused, queries answer", "[req:1.31]") {
  run_alone([] {
    const auto comms = init_pair();
    const Buffer buffer(8192), other(8192);
    ncclWindow_t window = nullptr, ignored = nullptr;
    require_in_progress(ncclCommWindowRegister(comms[0], buffer.at(), 4096, &window, 1),
                        "ncclCommWindowRegister");
    require(state_of(comms[0]) == ncclInProgress, "the other rank has not come");
    const auto refused = [](ncclResult_t result, const char* what) {
      expect_error(result, ncclInvalidUsage, what, {"in progress", "poll"});
    };
    float value = 1;
    refused(sum(&value, 1, comms[0]), "ncclAllReduce");
    refused(ncclCommWindowRegister(comms[0], other.at(), 4096, &ignored, 1), "register");
    refused(ncclCommFinalize(comms[0]), "ncclCommFinalize");
    int rank = -1;
    require(ncclCommUserRank(comms[0], &rank), "ncclCommUserRank");
    require(rank == 0 && window == nullptr, "no window yet");
    ncclWindow_t second = nullptr;
    require_in_progress(ncclCommWindowRegister(comms[1], other.at(), 4096, &second, 1), "register");
    for (ncclComm_t comm : comms) require_success(comm, "registration");
    require(window != nullptr && second != nullptr, "windows");
    require_sum(comms);
    destroy(comms);
  });
}

TEST_CASE("a refused non-blocking registration is an error on all ranks, later calls succeed",
          "[req:1.31]") {
  run_alone([] {
    const auto comms = init_pair();
    const Buffer buffer(8192);
    std::array<ncclWindow_t, 2> windows{};
    require_in_progress(ncclCommWindowRegister(comms[0], buffer.at(8), 4096, &windows[0], 1),
                        "bad");
    require_in_progress(ncclCommWindowRegister(comms[1], buffer.at(), 4096, &windows[1], 1),
                        "good");
    for (ncclComm_t comm : comms) {
      require(settled_state(comm) == ncclInvalidArgument, "the state");
      require_words(ncclGetLastError(comm), {"4096"});
    }
    require(windows[0] == nullptr && windows[1] == nullptr, "windows");
    require_sum(comms);
    finalize(comms);
    destroy(comms);
  });
}

void end_in_progress(bool by_abort) {
  auto comms = init_pair();
  const Buffer buffer(8192);
  auto* const untouched = reinterpret_cast<ncclWindow_t>(&comms);
  ncclWindow_t window = nullptr;
  const auto started = steady_clock::now();
  if (by_abort) {
    require_in_progress(ncclCommWindowRegister(comms[0], buffer.at(), 4096, &window, 1),
                        "ncclCommWindowRegister");
    require(ncclCommAbort(comms[0]), "ncclCommAbort");
    window = untouched;
    const auto is_reported = [&] { return settled_state(comms[1]) == ncclRemoteError; };
    require(eventually(is_reported), "the other rank learns of it");
    require(ncclCommDestroy(comms[1]), "ncclCommDestroy");
    std::this_thread::sleep_for(50ms);
    require(window == untouched, "written behind the user's back");
  } else {
    for (ncclComm_t comm : comms) {
      require_in_progress(ncclCommFinalize(comm), "ncclCommFinalize");
      require(ncclCommDestroy(comm), "ncclCommDestroy right after");
    }
  }
  require(steady_clock::now() - started < 15s, "it waited");
}

TEST_CASE("destroy and abort end what is in progress without waiting for other ranks",
          "[req:1.31]") {
  run_alone([] {
    end_in_progress(false);
    const Held before = settled();
    for (const bool by_abort : {false, true}) {
      end_in_progress(by_abort);
      require_held(before, by_abort ? "abort" : "destroy");
    }
  });
}

TEST_CASE("aborting one non-blocking communicator leaves the others of its group alone",
          "[req:1.10]") {
  check_all_ok(run_ranks(LaunchMode::processes, 2, [](TestRanks& test_ranks) {
    const ncclUniqueId first = test_ranks.next_id(), second = test_ranks.next_id();
    if (test_ranks.first() == 1) {
      test_ranks.barrier();
      ncclComm_t comm = nullptr;
      require(ncclCommInitRank(&comm, 2, first, 1), "ncclCommInitRank");
      require(ncclCommDestroy(comm), "ncclCommDestroy");
      return;
    }
    ncclConfig_t config = non_blocking();
    std::array<ncclComm_t, 2> comms{};
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclCommInitRankConfig(&comms[0], 2, first, 0, &config), "note");
    require(ncclCommInitRankConfig(&comms[1], 2, second, 0, &config), "note");
    require_in_progress(ncclGroupEnd(), "ncclGroupEnd");
    require(ncclCommAbort(comms[1]), "ncclCommAbort");
    std::this_thread::sleep_for(100ms);
    require(state_of(comms[0]) == ncclInProgress, ncclGetLastError(comms[0]));
    test_ranks.barrier();
    require_success(comms[0], "init");
    require(ncclCommDestroy(comms[0]), "ncclCommDestroy");
  }));
}

TEST_CASE("a group that starts a non-blocking communicator ends behind its all-reduces",
          "[req:1.33]") {
  run_alone([] {
    std::array<ncclComm_t, 2> comms{};
    require(ncclCommInitAll(comms.data(), 2, nullptr), "ncclCommInitAll");
    ncclConfig_t config = non_blocking();
    std::vector<float> ones(1 << 20, 1), twos(1 << 20, 2);
    ncclComm_t later = nullptr;
    require(ncclGroupStart(), "ncclGroupStart");
    require(ncclCommInitRankConfig(&later, 2, new_id(), 0, &config), "note");
    require(sum(ones.data(), ones.size(), comms[0]), "note");
    require(sum(twos.data(), twos.size(), comms[1]), "note");
    require_in_progress(ncclGroupEnd(), "ncclGroupEnd");
    require(ones.front() == 3 && ones.back() == 3 && twos.back() == 3, "the sum");
    require(ncclCommAbort(later), "ncclCommAbort");
    destroy(comms);
  });
}

TEST_CASE("a non-blocking rank's registration ends with the group that also all-reduces",
          "[req:1.33]") {
  run_alone([] {
    const auto comms = init_pair();
    const Buffer first(8192), second(8192);
    const std::array<const Buffer*, 2> buffers = {&first, &second};
    std::array<ncclWindow_t, 2> windows{};
    require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t i = 0; i < 2; ++i) {
      auto* const data = reinterpret_cast<float*>(buffers[i]->at());
      data[0] = static_cast<float>(i + 1);
      require(ncclCommWindowRegister(comms[i], data, 4096, &windows[i], 1), "note");
      require(sum(data, 1, comms[i]), "note");
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
    for (std::size_t i = 0; i < 2; ++i) {
      require(windows[i] != nullptr, "a window");
      require(*reinterpret_cast<float*>(buffers[i]->at()) == 3, "the sum");
      require(ncclCommDestroy(comms[i]), "ncclCommDestroy");
    }
  });
}

}  // namespace
}  // namespace oriel::test
