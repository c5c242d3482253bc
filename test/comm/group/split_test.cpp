// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

/// Communicators split from other communicators.
namespace oriel::test {
namespace {

struct Division {
  const char* name;
  int (*color)(int rank);
  int (*key)(int rank);
};

constexpr Division kDivisions[] = {
    {"all, in order", [](int) { return 0; }, [](int rank) { return rank; }},
    {"all, reversed by negative keys", [](int) { return 0x7fffffff; },
     [](int rank) { return -rank; }},
    {"odd and even, equal keys", [](int rank) { return rank % 2; }, [](int) { return 3; }},
    {"a pair, and no color else", [](int rank) { return rank < 2 ? 9 : NCCL_SPLIT_NOCOLOR; },
     [](int rank) { return rank == 0 ? 0x7fffffff : -0x7fffffff - 1; }},
    {"each alone", [](int rank) { return rank; }, [](int) { return 0; }},
};

/// Returns the parent ranks that share a communicator with `rank`, in the order of that
/// communicator.
std::vector<int> members_of(const Division& division, int rank, int size) {
  std::vector<int> members;
  if (division.color(rank) < 0) return members;
  for (int other = 0; other < size; ++other) {
    if (division.color(other) == division.color(rank)) members.push_back(other);
  }
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return division.key(a) < division.key(b); });
  return members;
}

std::vector<ncclComm_t> split(TestRanks& test_ranks, const std::vector<ncclComm_t>& parents,
                              const Division& division) {
  auto* const untouched = reinterpret_cast<ncclComm_t>(&test_ranks);
  std::vector<ncclComm_t> made(parents.size(), untouched);
  require(test_ranks.together([&](std::size_t i, int rank) {
    return ncclCommSplit(parents[i], division.color(rank), division.key(rank), &made[i], nullptr);
  }),
          "ncclCommSplit");
  return made;
}

/// In each non-null communicator, sums (world rank + 1) over its members, and checks the sum.
void require_sums(TestRanks& test_ranks, const std::vector<ncclComm_t>& comms,
                  const std::function<std::vector<int>(int rank)>& members_of_rank) {
  std::vector<float> data;
  for (const int rank : test_ranks.ranks()) data.push_back(static_cast<float>(rank + 1));
  require(test_ranks.together([&](std::size_t i, int) {
    return comms[i] == nullptr ? ncclSuccess : sum(&data[i], 1, comms[i]);
  }),
          "ncclAllReduce");
  for (std::size_t i = 0; i < comms.size(); ++i) {
    if (comms[i] == nullptr) continue;
    float expected = 0;
    for (const int member : members_of_rank(test_ranks.ranks()[i])) {
      expected += static_cast<float>(member + 1);
    }
    require(data[i] == expected, fmt::format("the sum is {}, not {}", data[i], expected));
  }
}

void require_places(const std::vector<ncclComm_t>& comms, const TestRanks& test_ranks,
                    const Division& division) {
  for (std::size_t i = 0; i < comms.size(); ++i) {
    const int rank = test_ranks.ranks()[i];
    const auto members = members_of(division, rank, test_ranks.size());
    require(members.empty() == (comms[i] == nullptr), "a handle for each rank with a color");
    if (members.empty()) continue;
    int place = -1, count = -1, device = 0;
    require(ncclCommUserRank(comms[i], &place), "ncclCommUserRank");
    require(ncclCommCount(comms[i], &count), "ncclCommCount");
    require(ncclCommCuDevice(comms[i], &device), "ncclCommCuDevice");
    require(count == static_cast<int>(members.size()) && device == -1, "the count and device");
    require(members.at(static_cast<std::size_t>(place)) == rank,
            fmt::format("rank {} in \"{}\"", place, division.name));
  }
}

void destroy_all(const std::vector<ncclComm_t>& comms) {
  for (ncclComm_t comm : comms) require(ncclCommDestroy(comm), "ncclCommDestroy");
}

TEST_CASE("communicators split by any colors and keys have the ranks in order and sum",
          "[req:5.25]") {
  for (const int size : {2, 5, 8}) {
    run_in_all_modes(size, [&](TestRanks& test_ranks) {
      auto world = test_ranks.init();
      for (const Division& division : kDivisions) {
        const auto made = split(test_ranks, world, division);
        require_places(made, test_ranks, division);
        require_sums(test_ranks, made, [&](int rank) { return members_of(division, rank, size); });
        destroy_all(made);
      }
      require_sums(test_ranks, world, [&](int) { return members_of(kDivisions[0], 0, size); });
      test_ranks.destroy(world);
    });
  }
}

TEST_CASE("a split of a split lives on without both parents, and registers windows", "[req:5.25]") {
  run_in_all_modes(6, [](TestRanks& test_ranks) {
    auto world = test_ranks.init();
    const auto halves = split(test_ranks, world, kDivisions[2]);
    std::vector<ncclComm_t> pairs(world.size());
    require(test_ranks.together([&](std::size_t i, int rank) {
      return ncclCommSplit(halves[i], rank < 4 ? 0 : 1, 0, &pairs[i], nullptr);
    }),
            "the second split");
    destroy_all(halves);
    test_ranks.destroy(world);
    const auto members = [](int rank) {
      return rank < 4 ? std::vector<int>{rank % 2, rank % 2 + 2} : std::vector<int>{rank};
    };
    require_sums(test_ranks, pairs, members);
    std::vector<Buffer> buffers;
    std::vector<void*> addresses;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      addresses.push_back(buffers.emplace_back(std::size_t{1} << 20).at());
    }
    const auto windows = test_ranks.register_windows(pairs, addresses, std::size_t{1} << 20);
    for (const ncclWindow_t window : windows) require(window != nullptr, "a window");
    require(test_ranks.together([&](std::size_t i, int) {
      return sum(static_cast<float*>(addresses[i]), std::size_t{1} << 18, pairs[i]);
    }),
            "a sum over windows");
    require_sums(test_ranks, pairs, members);
    destroy_all(pairs);
  });
}

TEST_CASE("a parent that is aborted leaves its children as they are", "[req:5.25]") {
  run_in_all_modes(4, [](TestRanks& test_ranks) {
    auto world = test_ranks.init();
    const auto made = split(test_ranks, world, kDivisions[2]);
    test_ranks.barrier();
    if (test_ranks.first() == 0) require(ncclCommAbort(world[0]), "ncclCommAbort");
    for (std::size_t i = 0; i < world.size(); ++i) {
      if (test_ranks.ranks()[i] == 0) continue;
      require(await_failure(world[i]) == ncclRemoteError, "the parent has failed");
      ncclComm_t none = world[i];
      expect_error(ncclCommSplit(world[i], 0, 0, &none, nullptr), ncclRemoteError, "a split of it",
                   {"ncclCommAbort", "rank 0"});
      require(none == nullptr, "no handle");
    }
    for (int round = 0; round < 3; ++round) {
      require_sums(test_ranks, made, [](int rank) { return members_of(kDivisions[2], rank, 4); });
    }
    for (std::size_t i = 0; i < world.size(); ++i) {
      if (test_ranks.ranks()[i] != 0) require(ncclCommDestroy(world[i]), "ncclCommDestroy");
    }
    destroy_all(made);
  });
}

TEST_CASE("one rank's wrong argument of a split is the error of all ranks, and leaves nothing",
          "[req:5.25][req:1.38]") {
  run_in_all_modes(3, [](TestRanks& test_ranks) {
    auto world = test_ranks.init();
    const Held before = settled();
    test_ranks.barrier();
    ncclConfig_t garbage = NCCL_CONFIG_INITIALIZER;
    garbage.magic = 1;
    enum Mistake { color, place, config };
    for (const Mistake mistake : {color, place, config}) {
      std::vector<ncclComm_t> made(world.size(), world[0]);
      const ncclResult_t result = test_ranks.together([&](std::size_t i, int rank) {
        const bool is_wrong = rank == 1;
        return ncclCommSplit(world[i], is_wrong && mistake == color ? -2 : 0, 0,
                             is_wrong && mistake == place ? nullptr : &made[i],
                             is_wrong && mistake == config ? &garbage : nullptr);
      });
      const char* const word = mistake == color ? "-2" : mistake == place ? "newcomm" : "Config";
      expect_error(result, ncclInvalidArgument, "the split", {word, "rank 1"});
      for (std::size_t i = 0; i < made.size(); ++i) {
        const bool is_untouched = test_ranks.ranks()[i] == 1 && mistake == place;
        require(made[i] == (is_untouched ? world[0] : nullptr), "a handle is left");
      }
      test_ranks.barrier();
      require_held(before, "after a refused split");
      test_ranks.barrier();
    }
    const auto made = split(test_ranks, world, kDivisions[1]);
    require_sums(test_ranks, made, [](int) { return std::vector<int>{0, 1, 2}; });
    destroy_all(made);
    test_ranks.destroy(world);
  });
}

TEST_CASE("a split of a communicator that is finalized or none is refused by name", "[req:5.25]") {
  run_alone([] {
    ncclComm_t comm = init_alone(), made = comm;
    expect_error(ncclCommSplit(nullptr, 0, 0, &made, nullptr), ncclInvalidArgument, "null",
                 {"null"});
    require(made == nullptr, "no handle");
    require(ncclCommSplit(comm, 4, 0, &made, nullptr), "a split of one rank");
    require_sum({&made, 1});
    require(ncclCommDestroy(made), "ncclCommDestroy");
    require(ncclCommFinalize(comm), "ncclCommFinalize");
    expect_error(ncclCommSplit(comm, 0, 0, &made, nullptr), ncclInvalidUsage, "finalized",
                 {"finalized"});
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    expect_error(ncclCommSplit(comm, 0, 0, &made, nullptr), ncclInvalidArgument, "destroyed",
                 {"destroyed"});
  });
}

TEST_CASE("a group makes several splits of several communicators", "[req:5.25]") {
  run_in_all_modes(4, [](TestRanks& test_ranks) {
    auto first = test_ranks.init();
    auto second = test_ranks.init();
    const auto count = first.size();
    std::vector<ncclComm_t> made(3 * count);
    require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t i = 0; i < count; ++i) {
      const int rank = test_ranks.ranks()[i];
      require(ncclCommSplit(first[i], rank / 2, 0, &made[i], nullptr), "note");
      // Ranks name the communicators in different orders.
      if (rank % 2 == 0) {
        require(ncclCommSplit(second[i], 0, -rank, &made[2 * count + i], nullptr), "note");
      }
      require(ncclCommSplit(first[i], rank % 2, 0, &made[count + i], nullptr), "note");
      if (rank % 2 != 0) {
        require(ncclCommSplit(second[i], 0, -rank, &made[2 * count + i], nullptr), "note");
      }
    }
    require(ncclGroupEnd(), "ncclGroupEnd");
    const auto part = [&](std::size_t k) {
      const auto begin = made.begin() + static_cast<std::ptrdiff_t>(k * count);
      return std::vector<ncclComm_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
    };
    require_sums(test_ranks, part(0), [](int rank) {
      return std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1};
    });
    require_sums(test_ranks, part(1), [](int rank) {
      return std::vector<int>{rank % 2, rank % 2 + 2};
    });
    require_sums(test_ranks, part(2), [](int) { return std::vector<int>{0, 1, 2, 3}; });
    // A group with a wrong call makes no communicator.
    std::vector<ncclComm_t> none(count, made[0]);
    require(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t i = 0; i < count; ++i) {
      require(ncclCommSplit(first[i], 0, 0, &none[i], nullptr), "note");
    }
    expect_error(ncclAllReduce(nullptr, nullptr, 1, ncclNumTypes, ncclSum, first[0], nullptr),
                 ncclInvalidArgument, "a wrong call");
    expect_error(ncclGroupEnd(), ncclInvalidArgument, "ncclGroupEnd");
    for (ncclComm_t comm : none) require(comm == nullptr, "a handle is left");
    destroy_all(made);
    test_ranks.destroy(first);
    test_ranks.destroy(second);
  });
}

TEST_CASE("a rank that is killed before or in a split is named to all others at once",
          "[req:5.25]") {
  for (const bool in_split : {false, true}) {
    RankFixture fixture(LaunchMode::processes, 4, [&](TestRanks& test_ranks) {
      auto world = test_ranks.init();
      test_ranks.barrier();
      if (test_ranks.first() == 2) {
        if (in_split) {
          std::thread([] {
            std::this_thread::sleep_for(5ms);
            ::kill(::getpid(), SIGKILL);
          }).detach();
          for (;;) static_cast<void>(split(test_ranks, world, kDivisions[1]));
        }
        ::kill(::getpid(), SIGKILL);
      }
      const auto started = std::chrono::steady_clock::now();
      ncclResult_t result = ncclSuccess;
      while (result == ncclSuccess && std::chrono::steady_clock::now() - started < 20s) {
        ncclComm_t made = nullptr;
        result = ncclCommSplit(world[0], 0x7fffffff, -test_ranks.first(), &made, nullptr);
        if (result != ncclSuccess) require(made == nullptr, "a handle is left");
        // Not destroyed here, because a drain might wait for the dead rank.
      }
      expect_error(result, ncclRemoteError, "ncclCommSplit", {"rank"});
      require_words(ncclGetLastError(nullptr), {"splitting"});
      require(std::chrono::steady_clock::now() - started < 15s, "the deadline was waited for");
    });
    const auto results = fixture.collect(60s);
    for (const std::size_t rank : {0u, 1u, 3u}) CHECK(results[rank] == "ok");
  }
}

TEST_CASE("a split of a non-blocking communicator goes on in the background", "[req:5.25]") {
  run_alone([] {
    const ncclUniqueId id = new_id();
    ncclConfig_t config = non_blocking();
    ncclComm_t comms[2] = {}, made[2] = {};
    for (int rank = 0; rank < 2; ++rank) {
      require(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config) == ncclInProgress, "init");
    }
    for (ncclComm_t comm : comms) require(settled_state(comm) == ncclSuccess, "init");
    require(ncclCommSplit(comms[0], 0, 1, &made[0], nullptr) == ncclInProgress, "ncclCommSplit");
    require(made[0] != nullptr, "the handle is shown at once");
    require(state_of(made[0]) == ncclInProgress && state_of(comms[0]) == ncclInProgress, "states");
    int rank = -1;
    expect_error(ncclCommUserRank(made[0], &rank), ncclInvalidUsage, "not known yet", {"started"});
    require(ncclCommSplit(comms[1], 0, 0, &made[1], nullptr) == ncclInProgress, "ncclCommSplit");
    for (ncclComm_t comm : comms) require(settled_state(comm) == ncclSuccess, "the parent");
    for (ncclComm_t comm : made) require(settled_state(comm) == ncclSuccess, "the child");
    require(ncclCommUserRank(made[0], &rank), "ncclCommUserRank");
    require(rank == 1, "the rank");
    require_sum(made);
    // Children inherit the configuration, and so are non-blocking as well.
    require(ncclCommFinalize(made[0]) == ncclInProgress, "ncclCommFinalize");
    require(ncclCommFinalize(made[1]) == ncclInProgress, "ncclCommFinalize");
    for (ncclComm_t comm : made) require(settled_state(comm) == ncclSuccess, "finalize");
    destroy(made);

    // An error is reported by both communicators, and the parent stays usable.
    require(ncclCommSplit(comms[0], 0, 0, &made[0], nullptr) == ncclInProgress, "ncclCommSplit");
    require(ncclCommSplit(comms[1], -5, 0, &made[1], nullptr) == ncclInProgress, "ncclCommSplit");
    for (ncclComm_t comm : comms) require(settled_state(comm) == ncclInvalidArgument, "the parent");
    require(settled_state(made[0]) == ncclInvalidArgument, "the child");
    require_words(ncclGetLastError(made[0]), {"color is -5", "rank 1"});
    require(made[1] == nullptr, "no handle");
    require(ncclCommDestroy(made[0]), "ncclCommDestroy");
    require_sum(comms);

    // A child aborted before it has started also fails on the other rank.
    require(ncclCommSplit(comms[0], 0, 0, &made[0], nullptr) == ncclInProgress, "ncclCommSplit");
    require(ncclCommAbort(made[0]), "ncclCommAbort");
    require(ncclCommSplit(comms[1], 0, 0, &made[1], nullptr) == ncclInProgress, "ncclCommSplit");
    require(settled_state(made[1]) == ncclRemoteError, "the other rank's child");
    for (ncclComm_t comm : comms)
      require(settled_state(comm) != ncclSuccess, "the splits' outcome");
    require(ncclCommDestroy(made[1]), "ncclCommDestroy");
    require_sum(comms);
    destroy(comms);
  });
}

TEST_CASE("a split can make a non-blocking communicator of a blocking one", "[req:5.25]") {
  run_alone([] {
    ncclComm_t comms[2] = {}, made[2] = {};
    require(ncclCommInitAll(comms, 2, nullptr), "ncclCommInitAll");
    ncclConfig_t config = non_blocking();
    require(ncclGroupStart(), "ncclGroupStart");
    for (int i = 0; i < 2; ++i) require(ncclCommSplit(comms[i], 0, 0, &made[i], &config), "note");
    require(ncclGroupEnd(), "ncclGroupEnd");
    require_sum(made);
    for (ncclComm_t comm : made) require(ncclCommFinalize(comm) == ncclInProgress, "finalize");
    for (ncclComm_t comm : made) require(settled_state(comm) == ncclSuccess, "finalize");
    destroy(made);
    destroy(comms);
  });
}

TEST_CASE("a communicator of several nodes is split along and across them", "[req:5.25]") {
  check_all_ok(run_ranks(LaunchMode::processes, 4, [](TestRanks& test_ranks) {
    const Variables host = {{"ORIEL_HOSTID", test_ranks.first() < 2 ? "one" : "two"}};
    const Environment node(host);
    auto world = test_ranks.init();
    for (const bool across : {false, true}) {
      ncclComm_t made = nullptr;
      const int rank = test_ranks.first();
      require(ncclCommSplit(world[0], across ? rank % 2 : rank / 2, 0, &made, nullptr), "split");
      require_sums(test_ranks, {made}, [&](int) {
        return across ? std::vector<int>{rank % 2, rank % 2 + 2}
                      : std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1};
      });
      require(ncclCommDestroy(made), "ncclCommDestroy");
    }
    test_ranks.destroy(world);
  }));
}

TEST_CASE("30 splits leave as many descriptors, mappings and threads as 3", "[req:5.25]") {
  run_in_all_modes(3, [](TestRanks& test_ranks) {
    auto world = test_ranks.init();
    Held after_three{};
    for (int cycle = 1; cycle <= repeats(30, 3); ++cycle) {
      const auto made = split(test_ranks, world, kDivisions[static_cast<std::size_t>(cycle) % 5]);
      destroy_all(made);
      test_ranks.barrier();
      if (cycle == 3) after_three = settled();
      test_ranks.barrier();
    }
    require_held(after_three, "after the last cycle");
    test_ranks.barrier();
    test_ranks.destroy(world);
  });
}

}  // namespace
}  // namespace oriel::test
