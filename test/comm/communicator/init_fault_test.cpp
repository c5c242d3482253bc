// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "comm/support/fault_outcome.hpp"
#include "comm/support/held.hpp"
#include "support/fault.hpp"
#include "support/ranks.hpp"
#include "support/seed.hpp"

/// Makes each system call of a rank from init to destroy fail. The seed selects the error of each
/// call.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;
constexpr std::size_t kBytes = 65536;
// Ends the walk only after several runs without a hit. Timing decides how often a rank reads and
// polls, so one run may end before call k.
constexpr int kMissesToEnd = 3;
constexpr long kCallsMost = 20'000;

// Errors for missing resources or permissions. None of them asks the caller to retry.
constexpr std::array kStatuses = {ENOMEM, EMFILE, ENFILE, EPERM, EIO, ENOBUFS, EADDRINUSE};

struct Life {
  Outcome outcome;
  Phase hit_in = Phase::none;
};

/// Runs one life of a communicator, in which calls of this process can fail. The last message of an
/// agreement cannot be undone: if it is lost, the failure appears at the next call. A split without
/// children serves as the next call after registration.
Life live(TestRanks& test_ranks, FaultPlan* plan, Reach reach) {
  Life life;
  const ncclUniqueId id = test_ranks.next_id();
  std::vector<ncclComm_t> comms(test_ranks.ranks().size());
  std::vector<ncclWindow_t> windows(comms.size());
  std::vector<Buffer> buffers;
  ncclComm_t none = nullptr;
  for (std::size_t i = 0; i < comms.size(); ++i) buffers.emplace_back(kBytes);
  const auto step = [&](Phase phase, const char* call, const auto& one) {
    std::optional<ScopedSystemFaults> faults;
    if (plan != nullptr) faults.emplace(*plan, reach);
    const ncclResult_t result = test_ranks.together(one);
    faults.reset();
    if (plan != nullptr && plan->hit() && life.hit_in == Phase::none) life.hit_in = phase;
    life.outcome.note(result, call);
    return life.outcome.result == ncclSuccess;
  };
  const bool good = step(Phase::set_up, "ncclCommInitRank",
                         [&](std::size_t i, int rank) {
                           return ncclCommInitRank(&comms[i], kRanks, id, rank);
                         }) &&
                    step(Phase::set_up, "ncclCommWindowRegister",
                         [&](std::size_t i, int) {
                           return ncclCommWindowRegister(comms[i], buffers[i].at(), kBytes,
                                                         &windows[i], NCCL_WIN_COLL_SYMMETRIC);
                         }) &&
                    step(Phase::last, "ncclCommSplit", [&](std::size_t i, int) {
                      return ncclCommSplit(comms[i], NCCL_SPLIT_NOCOLOR, 0, &none, nullptr);
                    });
  static_cast<void>(good);
  step(Phase::destroy, "ncclCommDestroy", [&](std::size_t i, int) {
    require(ncclCommDestroy(comms[i]), "ncclCommDestroy");  // freeing cannot fail
    return ncclSuccess;
  });
  return life;
}

/// Waits until the process holds no more than `before`, because idle threads end in the background.
/// Lowers `before` to the new counts, as such a thread may have been counted.
bool settles_at(Held& before) {
  const Held most = before;
  return eventually([&] { return within(before = held(), most); });
}

struct Walk {
  LaunchMode launch_mode;
  Reach reach;
  long stride;
  long seed;
};

struct Count {
  int agreed = 0, harmless = 0;
};

/// Runs one process's part of the walk. In a group, all ranks share a thread, so there is no
/// victim. An error of any rank is reported at once and names a rank.
void walk_all(TestRanks& test_ranks, const Walk& walk) {
  const bool is_group = walk.launch_mode == LaunchMode::group;
  const bool counts = walk.launch_mode == LaunchMode::processes || test_ranks.first() == 0;
  // An unused id keeps the root service running, so that the number of its descriptors is constant.
  const ncclUniqueId unused = test_ranks.next_id();
  for (int i = 0; i < 3; ++i) {
    const Outcome outcome = live(test_ranks, nullptr, walk.reach).outcome;
    require(outcome.result == ncclSuccess, outcome.text);
  }
  test_ranks.barrier();
  std::this_thread::sleep_for(50ms);  // lets threads of the library end
  Held before = held();
  test_ranks.barrier();

  std::string complaints;
  Count count;
  for (int victim = 0; victim < (is_group ? 1 : kRanks); ++victim) {
    int misses = 0;
    for (long k = 1 + walk.seed % walk.stride; misses < kMissesToEnd && k < kCallsMost;
         k += walk.stride) {
      FaultPlan plan;
      plan.fail_at = k;
      plan.status = kStatuses[static_cast<std::size_t>(walk.seed + k) % kStatuses.size()];
      const bool mine = test_ranks.first() == victim;
      const auto [outcome, hit_in] = live(test_ranks, mine ? &plan : nullptr, walk.reach);
      for (const int rank : test_ranks.ranks()) {
        test_ranks.word(kOutcome + static_cast<std::size_t>(rank)) = outcome.word();
      }
      if (mine) test_ranks.word(kHitIn) = static_cast<std::uint64_t>(hit_in);
      test_ranks.barrier();
      const FaultResult result =
          evaluate(test_ranks, is_group ? std::max(outcome.blamed, 0) : victim);
      misses = result.hit ? 0 : misses + 1;
      ++(result.harmless ? count.harmless : count.agreed);
      const bool is_late = is_group && outcome.text.find("timeout") != std::string::npos;
      const std::string where =
          fmt::format("\nrank {}, call {}{}{}: ", victim, k, plan.hit() ? ", " : "",
                      plan.hit() ? plan.failed.load() : "");
      if (!result.agreed || is_late) complaints += where + outcome.text;
      const Held most = before;
      if (counts && !settles_at(before)) {
        complaints += where + "left behind: " + text_of(most) + " -> " + text_of(before);
      }
      test_ranks.barrier();
    }
  }
  if (test_ranks.first() == 0) {
    std::fprintf(stderr, "%s: %d errors on all ranks, %d without effect\n",
                 name_of(walk.launch_mode), count.agreed, count.harmless);
    ncclComm_t last = nullptr;
    require(ncclCommInitRank(&last, 1, unused, 0), "a communicator of one rank");
    require(ncclCommDestroy(last), "ncclCommDestroy");
  }
  require(complaints.empty(), complaints);
}

}  // namespace

TEST_CASE("any failed system call of init or registration has the same outcome on all ranks",
          "[req:1.41]") {
  // ORIEL_TEST_STRIDE=1 tests every call.
  const long stride = number_from("ORIEL_TEST_STRIDE", 1);
  const auto seed = static_cast<long>(test_seed());
  const Environment environment(Variables{{"ORIEL_TIMEOUT", "2s"}, {"ORIEL_SOCKET_IFNAME", "lo"}});
  for (const Walk& walk : {Walk{LaunchMode::threads, Reach::thread, stride, seed},
                           Walk{LaunchMode::processes, Reach::process, stride, seed},
                           Walk{LaunchMode::group, Reach::process, stride, seed}}) {
    INFO(name_of(walk.launch_mode));
    check_all_ok(run_ranks(
        walk.launch_mode, kRanks, [&](TestRanks& test_ranks) { walk_all(test_ranks, walk); },
        280s));
  }
}

}  // namespace oriel::test
