// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "base/system_table.hpp"
#include "comm/support/in_teams.hpp"

// CPU ranks in teams of different sizes, on machines with other memory sizes than this one.
namespace oriel::test {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

#ifdef __SANITIZE_THREAD__
constexpr std::size_t kTeamBytes = 128 * kGiB;
#else
constexpr std::size_t kTeamBytes = 2048 * kGiB;
#endif

std::atomic<std::size_t> memory_of_machine{0};

long sysconf_of_machine(int name) {
  if (name != _SC_PHYS_PAGES) return real_system_table().sysconf(name);
  const auto page_bytes = static_cast<std::size_t>(real_system_table().sysconf(_SC_PAGESIZE));
  return static_cast<long>(memory_of_machine / page_bytes);
}

/// Makes sysconf() of this process report a machine with so much memory, for the rest of its life.
void pretend_memory(std::size_t bytes) {
  memory_of_machine = bytes;
  static SystemTable table = sys();
  table.sysconf = sysconf_of_machine;
  static const ScopedSystemTable scoped(table);
}

struct Machines {
  TwoNodes nodes;
  std::size_t memory_of_first;
  std::size_t memory_of_second;
};

void start_on(const Machines& machines) {
  INFO(machines.nodes.first << " ranks of " << machines.nodes.ranks << " with "
                            << machines.memory_of_first / kGiB << " GiB, the others with "
                            << machines.memory_of_second / kGiB);
  check_all_ok(run_ranks(LaunchMode::processes, machines.nodes.ranks, [&](TestRanks& test_ranks) {
    const int rank = test_ranks.first();
    const TwoNodes& nodes = machines.nodes;
    const Environment own(nodes.variables_of(rank));
    const std::size_t memory =
        nodes.in_first(rank) ? machines.memory_of_first : machines.memory_of_second;
    pretend_memory(memory);
    const std::size_t share = kTeamBytes / nodes.team_of(rank).size();
    const std::size_t expected = std::min(memory, share / (4 * kGiB) * (4 * kGiB));
    const std::size_t slot_bytes = start_in_team(test_ranks, nodes);
    require(slot_bytes == expected, fmt::format("slots of {} bytes", slot_bytes));
  }));
}

}  // namespace

TEST_CASE("64 CPU ranks of one node all-reduce, and 65 are refused when they start", "[req:1.28]") {
  check_all_ok(run_ranks(LaunchMode::threads, 64, [](TestRanks& test_ranks) {
    auto comm = join(test_ranks);
    add_one(comm);
    test_ranks.barrier();
  }));
  check_all_ok(run_ranks(LaunchMode::threads, 65, [](TestRanks& test_ranks) {
    must_fail(try_to_join(test_ranks), ErrorCode::invalid_usage,
              {"rank 64: ", "65 CPU ranks", "at most 64", "ORIEL_HOSTID"});
  }));
}

TEST_CASE("ranks of several teams all-reduce, and each knows its own team", "[req:2.3][req:3.16]") {
  check_all_ok(run_ranks(LaunchMode::processes, 5, [](TestRanks& test_ranks) {
    const TwoNodes nodes{5, 3};
    const Environment own(nodes.variables_of(test_ranks.first()));
    auto comm = join(test_ranks);
    require(comm.lsa_team() == nodes.team_of(test_ranks.first()), "the team");
    add_one(comm);
    test_ranks.barrier();
  }));
}

TEST_CASE("teams whose slots differ in size make one communicator", "[req:1.14]") {
  start_on({{4, 1}, 1024 * kGiB, 1024 * kGiB});
  start_on({{15, 7}, 512 * kGiB, 512 * kGiB});
  start_on({{4, 2}, 16 * kGiB, 24 * kGiB});
}

TEST_CASE("ranks of one team that know different sizes of memory agree on the largest",
          "[req:1.15]") {
  check_all_ok(run_ranks(LaunchMode::processes, 3, [](TestRanks& test_ranks) {
    const TwoNodes one_node{3, 3};
    const Environment own(one_node.variables_of(test_ranks.first()));
    pretend_memory(static_cast<std::size_t>(8 + 4 * test_ranks.first()) * kGiB);
    require(start_in_team(test_ranks, one_node) == 16 * kGiB, "the size of a slot");
  }));
}

TEST_CASE("a slot size that the user sets is the same on all ranks, or refused", "[req:1.15]") {
  check_all_ok(run_ranks(LaunchMode::processes, 4, [](TestRanks& test_ranks) {
    const TwoNodes nodes{4, 1};
    const Environment node(nodes.variables_of(test_ranks.first()));
    {
      const Environment size(Variables{{"ORIEL_BIG_SIZE", "8G"}});
      require(start_in_team(test_ranks, nodes) == 8 * kGiB, "the size of a slot");
    }
    const Environment size(Variables{{"ORIEL_BIG_SIZE", test_ranks.first() == 2 ? "4G" : ""}});
    must_fail(try_to_join(test_ranks), ErrorCode::invalid_usage,
              {"the size of a slot (ORIEL_BIG_SIZE)", "rank 2", "4294967296", "automatic"});
  }));
}

}  // namespace oriel::test
