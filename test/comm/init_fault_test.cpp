// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "nccl.h"

#include "support/fault.hpp"
#include "support/process_state.hpp"
#include "support/ranks.hpp"

/// Walks through every system call that a rank makes from init to destroy and has it fail.
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
constexpr std::size_t kComplaintsMost = 8;

// Words of the board.
constexpr std::size_t kHit = 0;
constexpr std::size_t kOutcome = 1;  // by rank

long number_from(const char* variable, long otherwise) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::strtol(text, nullptr, 0) : otherwise;
}

/// What a process holds, threads included.
struct Holding {
  ProcessState state;
  std::size_t threads = 0;
  bool operator==(const Holding&) const = default;
  std::string text() const {
    return fmt::format("{} fds, {} mappings, {} threads", state.fds, state.mappings, threads);
  }
};

Holding holding() {
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task");
  return {process_state(),
          static_cast<std::size_t>(std::distance(tasks, std::filesystem::directory_iterator{}))};
}

/// What one rank saw of one run: the first error, or success.
struct Outcome {
  ncclResult_t result = ncclSuccess;
  int blamed = -1;
  std::string text = "ok";

  void note(ncclResult_t returned, const char* call) {
    if (result != ncclSuccess || returned == ncclSuccess) return;
    result = returned;
    const std::string said = ncclGetLastError(nullptr);
    // "system error (communicator): rank 2: ..." has the origin of the error; other ranks may be
    // named behind it.
    const auto kind = said.find("): ");
    const bool named = kind != std::string::npos &&
                       std::sscanf(said.c_str() + kind + 3, "rank %d: ", &blamed) == 1;
    if (!named) blamed = -1;
    text = fmt::format("{} returned {}: {}", call, static_cast<int>(returned), said);
  }
  std::uint64_t word() const {
    return static_cast<std::uint64_t>(result) << 32 | static_cast<std::uint32_t>(blamed);
  }
};

/// One communicator's life, of which the victim's calls but finalize can fail. What cannot be
/// undone any more when it fails at the very end of a collective call (the last message of an
/// agreement does not arrive) shows at the next call, which finalize is for the last of them.
Outcome live(Players& players, const ncclUniqueId& id, FaultPlan* plan, Reach reach) {
  Outcome outcome;
  ncclComm_t comm = nullptr;
  ncclWindow_t window = nullptr;
  std::optional<ScopedSystemFaults> faults;
  const auto arm = [&](bool on) {
    faults.reset();
    if (on && plan != nullptr) faults.emplace(*plan, reach);
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
    arm(false);
    if (outcome.result == ncclSuccess) {
      outcome.note(ncclCommFinalize(comm), "ncclCommFinalize");
    }
    arm(true);
    const ncclResult_t destroyed = ncclCommDestroy(comm);
    arm(false);
    // Giving back cannot fail.
    require(destroyed, "ncclCommDestroy");
  }
  arm(false);
  return outcome;
}

/// What all players know of one run.
struct Verdict {
  bool hit = false;
  bool agreed = false;
  bool harmless = false;
};

Verdict judge(Players& players, int victim) {
  Verdict verdict;
  verdict.hit = players.word(kHit) != 0;
  const std::uint64_t first = players.word(kOutcome);
  verdict.agreed = true;
  for (std::size_t rank = 1; rank < kRanks; ++rank) {
    verdict.agreed = verdict.agreed && players.word(kOutcome + rank) == first;
  }
  verdict.harmless = first >> 32 == ncclSuccess;
  const int blamed = static_cast<int>(static_cast<std::uint32_t>(first));
  if (!verdict.harmless) verdict.agreed = verdict.agreed && blamed == victim;
  return verdict;
}

/// Waits until the process holds what it did: threads that have nothing to do any more end on
/// their own.
bool settles_at(const Holding& before) {
  const auto end = steady_clock::now() + 3s;
  while (holding() != before) {
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

struct Walk {
  Cast cast;
  Reach reach;
  long stride;
  long start;
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
    const Outcome outcome = live(players, players.next_id(), nullptr, walk.reach);
    require(outcome.result == ncclSuccess, outcome.text);
  }
  players.barrier();
  std::this_thread::sleep_for(50ms);  // for threads of the library that end on their own
  Holding before = holding();
  players.barrier();

  std::vector<std::string> complaints;
  Count count;
  for (int victim = 0; victim < kRanks; ++victim) {
    int misses = 0;
    for (long k = walk.start; misses < kMissesToEnd && k < kCallsMost; k += walk.stride) {
      const ncclUniqueId id = players.next_id();
      FaultPlan plan;
      plan.fail_at = k;
      plan.status = ENOMEM;
      const bool mine = players.first() == victim;
      const Outcome outcome = live(players, id, mine ? &plan : nullptr, walk.reach);
      players.word(kOutcome + static_cast<std::size_t>(players.first())) = outcome.word();
      if (mine) players.word(kHit) = plan.hit() ? 1 : 0;
      players.barrier();
      const Verdict verdict = judge(players, victim);
      misses = verdict.hit ? 0 : misses + 1;
      ++(verdict.harmless ? count.harmless : count.agreed);
      const std::string where =
          fmt::format("\nrank {}, call {}{}{}: ", victim, k, plan.hit() ? ", " : "",
                      plan.hit() ? plan.failed.load() : "");
      if (!verdict.agreed) complaints.push_back(where + outcome.text);
      if (counts && !settles_at(before)) {
        complaints.push_back(where + "left behind: " + before.text() + " -> " + holding().text());
        before = holding();  // told once
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

}  // namespace

TEST_CASE("1.41 whichever system call of init or registration fails on whichever rank, all agree") {
  // Every call: ORIEL_TEST_STRIDE=1.
  const long stride = number_from("ORIEL_TEST_STRIDE", 1);
  const long seed = number_from("ORIEL_TEST_SEED", static_cast<long>(std::random_device{}() >> 1));
  WARN("ORIEL_TEST_STRIDE=" << stride << " ORIEL_TEST_SEED=" << seed);
  Environment environment(Variables{{"ORIEL_TIMEOUT", "2s"}, {"ORIEL_SOCKET_IFNAME", "lo"}});
  const long start = 1 + seed % stride;
  for (const Walk& walk : {Walk{Cast::threads, Reach::thread, stride, start},
                           Walk{Cast::processes, Reach::process, stride, start}}) {
    INFO(name_of(walk.cast));
    check_all_ok(play(
        walk.cast, kRanks, [&](Players& players) { walk_all(players, walk); }, 280s));
  }
}

}  // namespace oriel::test
