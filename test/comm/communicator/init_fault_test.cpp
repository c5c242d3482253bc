// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <chrono>
#include <random>
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

/// Walks through every system call that a rank makes from init to destroy and has it fail. The seed
/// picks the error of each.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr std::size_t kBytes = 65536;
// How often a rank reads and polls depends on timing, so one run that ends before call k is not yet
// the end of the walk.
constexpr int kMissesToEnd = 3;
constexpr long kCallsMost = 20'000;

// What calls fail with for want of something, or without permission. None of them asks to be tried
// again.
constexpr std::array kStatuses = {ENOMEM, EMFILE, ENFILE, EPERM, EIO, ENOBUFS, EADDRINUSE};

bool within(const Held& now, const Held& other) {
  return now.fds <= other.fds && now.mappings <= other.mappings && now.threads <= other.threads;
}

struct Life {
  Outcome outcome;
  Phase hit_in = Phase::none;
};

/// One communicator's life, in which the victim's calls can fail. What cannot be undone any more
/// when it fails at the very end of a collective call (the last message of an agreement does not
/// arrive) shows at the next call, which finalize is for the last of them.
Life live(Players& players, const ncclUniqueId& id, FaultPlan* plan, Reach reach) {
  Life life;
  Outcome& outcome = life.outcome;
  ncclComm_t comm = nullptr;
  ncclWindow_t window = nullptr;
  std::optional<ScopedSystemFaults> faults;
  const auto arm = [&](bool on) {
    faults.reset();
    if (on && plan != nullptr) faults.emplace(*plan, reach);
  };
  const auto end = [&](Phase phase) {
    arm(false);
    if (plan != nullptr && plan->hit() && life.hit_in == Phase::none) life.hit_in = phase;
  };
  const int rank = players.first();
  void* memory = nullptr;
  arm(true);
  outcome.note(ncclCommInitRank(&comm, kRanks, id, rank), "ncclCommInitRank");
  if (comm != nullptr) {
    // Another rank may have had an error by now, but this one goes on until it learns of it.
    arm(false);
    Buffer buffer(kBytes);
    memory = buffer.at();
    arm(true);
    outcome.note(ncclCommWindowRegister(comm, memory, kBytes, &window, NCCL_WIN_COLL_SYMMETRIC),
                 "ncclCommWindowRegister");
    end(Phase::set_up);
    if (outcome.result == ncclSuccess) {
      arm(true);
      outcome.note(ncclCommFinalize(comm), "ncclCommFinalize");
      end(Phase::finalize);
    }
    arm(true);
    const ncclResult_t destroyed = ncclCommDestroy(comm);
    end(Phase::destroy);
    // Giving back cannot fail.
    require(destroyed, "ncclCommDestroy");
  }
  end(Phase::set_up);
  return life;
}

/// Waits until the process holds no more than it did: threads that have nothing to do any more end
/// on their own. It may have held too much, if such a thread had not ended: then less counts from
/// now on.
bool settles_at(Held& before) {
  const auto end = steady_clock::now() + 20s;
  for (Held now = held(); now != before; now = held()) {
    if (within(now, before)) {
      before = now;
      return true;
    }
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

struct Walk {
  Cast cast;
  Reach reach;
  long stride;
  long seed;
};

struct Count {
  int agreed = 0, harmless = 0;
};

/// One player's part of the walk.
void walk_all(Players& players, const Walk& walk) {
  const bool counts = walk.cast == Cast::processes || players.first() == 0;
  // An id that nobody uses keeps the root service running, so that its descriptors stay the same.
  ncclUniqueId unused = players.next_id();
  for (int i = 0; i < 3; ++i) {
    const Outcome outcome = live(players, players.next_id(), nullptr, walk.reach).outcome;
    require(outcome.result == ncclSuccess, outcome.text);
  }
  players.barrier();
  std::this_thread::sleep_for(50ms);  // for threads of the library that end on their own
  Held before = held();
  players.barrier();

  std::vector<std::string> complaints;
  Count count;
  for (int victim = 0; victim < kRanks; ++victim) {
    int misses = 0;
    for (long k = 1 + walk.seed % walk.stride; misses < kMissesToEnd && k < kCallsMost;
         k += walk.stride) {
      const ncclUniqueId id = players.next_id();
      FaultPlan plan;
      plan.fail_at = k;
      plan.status = kStatuses[static_cast<std::size_t>(walk.seed + k) % kStatuses.size()];
      const bool mine = players.first() == victim;
      const auto [outcome, hit_in] = live(players, id, mine ? &plan : nullptr, walk.reach);
      players.word(kOutcome + static_cast<std::size_t>(players.first())) = outcome.word();
      if (mine) players.word(kHitIn) = static_cast<std::uint64_t>(hit_in);
      players.barrier();
      const Verdict verdict = judge(players, victim);
      misses = verdict.hit ? 0 : misses + 1;
      ++(verdict.harmless ? count.harmless : count.agreed);
      const std::string where =
          fmt::format("\nrank {}, call {}{}{}: ", victim, k, plan.hit() ? ", " : "",
                      plan.hit() ? plan.failed.load() : "");
      if (!verdict.agreed) complaints.push_back(where + outcome.text);
      if (counts && !settles_at(before)) {
        complaints.push_back(where + "left behind: " + text_of(before) + " -> " + text_of(held()));
        before = held();  // told once
      }
      players.barrier();
    }
  }
  if (players.first() == 0) {
    std::fprintf(stderr, "%s: %d errors on all ranks, %d without effect\n", name_of(walk.cast),
                 count.agreed, count.harmless);
  }
  ncclComm_t last = nullptr;
  if (players.first() == 0) {
    require(ncclCommInitRank(&last, 1, unused, 0), "a communicator of one rank");
    require(ncclCommDestroy(last), "ncclCommDestroy");
  }
  std::string all;
  for (const std::string& complaint : complaints) all += complaint;
  require(complaints.empty(), all);
}

/// The life of communicators of one thread, in groups.
Outcome live_in_groups(Players& players, FaultPlan& plan) {
  Outcome outcome;
  const ncclUniqueId id = players.next_id();
  std::vector<ncclComm_t> comms(kRanks);
  std::vector<ncclWindow_t> windows(kRanks);
  std::vector<Buffer> buffers;
  buffers.reserve(kRanks);
  for (int i = 0; i < kRanks; ++i) buffers.emplace_back(kBytes);
  const ScopedSystemFaults faults(plan, Reach::process);
  const auto together = [&](const char* call, const auto& one) {
    if (outcome.result == ncclSuccess) outcome.note(players.together(one), call);
  };
  together("ncclCommInitRank",
           [&](std::size_t i, int rank) { return ncclCommInitRank(&comms[i], kRanks, id, rank); });
  together("ncclCommWindowRegister", [&](std::size_t i, int) {
    return ncclCommWindowRegister(comms[i], buffers[i].at(), kBytes, &windows[i],
                                  NCCL_WIN_COLL_SYMMETRIC);
  });
  together("ncclCommFinalize", [&](std::size_t i, int) { return ncclCommFinalize(comms[i]); });
  for (ncclComm_t comm : comms) require(ncclCommDestroy(comm), "ncclCommDestroy");
  return outcome;
}

/// The whole walk of one thread that plays all ranks: whichever of them an error is of, it is told
/// at once and names a rank.
void walk_in_groups(Players& players, long stride, long seed) {
  const ncclUniqueId unused = players.next_id();
  for (int i = 0; i < 3; ++i) {
    FaultPlan none;
    const Outcome outcome = live_in_groups(players, none);
    require(outcome.result == ncclSuccess, outcome.text);
  }
  std::this_thread::sleep_for(50ms);  // for threads of the library that end on their own
  Held before = held();
  Count count;
  std::string complaints;
  int misses = 0;
  for (long k = 1 + seed % stride; misses < kMissesToEnd && k < kCallsMost; k += stride) {
    FaultPlan plan;
    plan.fail_at = k;
    plan.status = kStatuses[static_cast<std::size_t>(seed + k) % kStatuses.size()];
    const Outcome outcome = live_in_groups(players, plan);
    misses = plan.hit() ? 0 : misses + 1;
    const bool fine = outcome.result == ncclSuccess;
    ++(fine ? count.harmless : count.agreed);
    const std::string where =
        fmt::format("\ncall {}, {}: ", k, plan.hit() ? plan.failed.load() : "none");
    const bool named = outcome.blamed >= 0 && outcome.blamed < kRanks;
    const bool late = outcome.text.find("timeout") != std::string::npos;
    if (!fine && (!plan.hit() || !named || late)) complaints += where + outcome.text;
    if (!settles_at(before)) {
      complaints += where + "left behind: " + text_of(before) + " -> " + text_of(held());
      before = held();  // told once
    }
  }
  std::fprintf(stderr, "in groups: %d errors, %d without effect\n", count.agreed, count.harmless);
  ncclComm_t last = nullptr;
  require(ncclCommInitRank(&last, 1, unused, 0), "a communicator of one rank");
  require(ncclCommDestroy(last), "ncclCommDestroy");
  require(complaints.empty(), complaints);
}

}  // namespace

TEST_CASE("whichever system call of init or registration fails on whichever rank, all agree",
          "[req:1.41]") {
  // Every call: ORIEL_TEST_STRIDE=1.
  const long stride = number_from("ORIEL_TEST_STRIDE", 1);
  const long seed = number_from("ORIEL_TEST_SEED", static_cast<long>(std::random_device{}() >> 1));
  WARN("ORIEL_TEST_STRIDE=" << stride << " ORIEL_TEST_SEED=" << seed);
  Environment environment(Variables{{"ORIEL_TIMEOUT", "2s"}, {"ORIEL_SOCKET_IFNAME", "lo"}});
  for (const Walk& walk : {Walk{Cast::threads, Reach::thread, stride, seed},
                           Walk{Cast::processes, Reach::process, stride, seed}}) {
    INFO(name_of(walk.cast));
    check_all_ok(play(
        walk.cast, kRanks, [&](Players& players) { walk_all(players, walk); }, 280s));
  }
}

TEST_CASE("whichever system call of a group's init or registration fails, the group ends",
          "[req:1.41]") {
  const long stride = number_from("ORIEL_TEST_STRIDE", 1);
  const long seed = number_from("ORIEL_TEST_SEED", static_cast<long>(std::random_device{}() >> 1));
  WARN("ORIEL_TEST_STRIDE=" << stride << " ORIEL_TEST_SEED=" << seed);
  Environment environment(Variables{{"ORIEL_TIMEOUT", "2s"}, {"ORIEL_SOCKET_IFNAME", "lo"}});
  check_all_ok(play(
      Cast::group, kRanks, [&](Players& players) { walk_in_groups(players, stride, seed); }, 280s));
}

}  // namespace oriel::test
