// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "comm/communicator/collective_sums.hpp"
#include "comm/paths/path_interfaces.hpp"
#include "comm/support/network_of.hpp"
#include "comm/support/network_ranks.hpp"
#include "comm/support/test_hosts.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/sanitized.hpp"

/// Hosts with several links, which are network namespaces. Ranks continue on the second link when
/// the first is down (3.14).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

/// A path fails after 1.2 s without an answer, a NIC after 3 s; both are doubled with sanitizers.
/// Set-up uses net1, which stays up.
const Variables kOnTwoLinks = {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                               {"ORIEL_SOCKET_IFNAME", "net1"},
                               {"ORIEL_PATHS", "net0,net1"},
                               {"ORIEL_COLLECTIVE_TIMEOUT", kSanitized ? "18s" : "9s"}};
const Variables kChosen = {{"ORIEL_SOCKET_IFNAME", "net1,net0"}, {"ORIEL_PATHS", "auto"}};

enum Word : std::size_t { kRounds = 0, kPath = 8, kFinish = 16 };  // by rank but the last

/// Repeats collectives until the director ends the test, in the same round on all ranks.
void collect_until_error(TestRanks& test_ranks, Rank& rank, int other) {
  const auto self = static_cast<std::size_t>(test_ranks.first());
  std::int64_t finish = 0;
  while (finish == 0) {
    collect(rank.comm, 500);
    ++test_ranks.word(kRounds + self);
    const auto pace = pace_of(rank, other);
    const bool is_running = pace.is_settled && pace.path >= 0;
    test_ranks.word(kPath + self) = is_running ? static_cast<std::uint64_t>(pace.path) + 1 : 0;
    std::int64_t said = self == 0 ? static_cast<std::int64_t>(test_ranks.word(kFinish).load()) : 0;
    must(rank.comm.all_reduce(
        {.input = &said, .output = &finish, .count = 1, .type = DataType::i64}));
  }
}

/// Set-up uses the first of three links; the ranks find the other links.
const Variables kFound = {{"ORIEL_SOCKET_IFNAME", "net0,net1,net2"}, {"ORIEL_PATHS", "auto"}};

/// Checks that both ends pair the same interfaces in the same order.
void check_ends(TestRanks& test_ranks, const Rank& rank, int other) {
  const auto place = [&](int from, int to) {
    return static_cast<std::size_t>(32 + from * test_ranks.size() + to);
  };
  const int self = test_ranks.first();
  std::string names;
  for (const std::string& one : network_of(rank).interfaces_to(other)) names += one.back();
  test_ranks.word(place(self, other)) = std::stoull(names);
  test_ranks.barrier();
  test::require(
      test_ranks.word(place(other, self)) == std::stoull(names),
      "the ends of the paths between " + std::to_string(self) + " and " + std::to_string(other));
  test_ranks.barrier();
}

/// Checks an atomic's old value, which must arrive by every path. The bytes never change.
void fetch(Rank& rank, int peer, std::size_t offset) {
  namespace dq = device::queue;
  const auto at = static_cast<std::size_t>(peer);
  std::uint64_t old = 0, expected = 0;
  for (std::size_t i = 0; i < sizeof expected; ++i) {
    expected |= static_cast<std::uint64_t>(pattern(peer, 1, i)) << (8 * i);
  }
  const auto outcome = dq::fetch_atomic<dq::AtomicOp::add>(
      device::Thread(), rank.view().network->queues[at], rank.window.view().network->peers[at],
      offset, std::uint64_t{0}, old, {});
  test::require(outcome == dq::QueueOutcome::done, "an atomic");
  test::require(old == expected, "the old value");
}

bool await_path_of_all(RankFixture& fixture, int ranks, std::uint64_t path) {
  const auto is_there = [&] {
    for (int rank = 0; rank < ranks; ++rank) {
      if (fixture.shared().words[kPath + static_cast<std::size_t>(rank)] != path + 1) return false;
    }
    return true;
  };
  for (int i = 0; i < 3000 && !is_there(); ++i) std::this_thread::sleep_for(10ms);
  return is_there();
}

}  // namespace

TEST_CASE("a link that goes down in collectives is left, and taken again once it is up",
          "[req:3.14]") {
  const TestHosts hosts(2, 2);
  const Nodes nodes{{2, 1}};
  RankFixture fixture(LaunchMode::processes, nodes.ranks(), [&](TestRanks& test_ranks) {
    hosts.enter(nodes.node_of(test_ranks.first()));
    const Environment environment(kOnTwoLinks);
    Rank rank(test_ranks, 4096, kWorld);
    collect_until_error(test_ranks, rank, test_ranks.first() == 2 ? 0 : 2);
    test_ranks.barrier();
  });
  REQUIRE(fixture.wait_for_word(kRounds, 3, 30s));
  CHECK(await_path_of_all(fixture, nodes.ranks(), 0));
  hosts.cut(1, 0);
  CHECK(await_path_of_all(fixture, nodes.ranks(), 1));
  const std::uint64_t rounds = fixture.shared().words[kRounds];
  CHECK(fixture.wait_for_word(kRounds, rounds + 3, 30s));
  hosts.mend(1, 0);
  CHECK(await_path_of_all(fixture, nodes.ranks(), 0));
  fixture.shared().words[kFinish] = 1;
  check_all_ok(fixture.collect(40s));
}

TEST_CASE("the paths that a rank finds itself end with the link that set-up uses", "[req:3.14]") {
  const TestHosts hosts(2, 2);
  check_all_ok(run_ranks(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    hosts.enter(test_ranks.first());
    const Environment environment(kOnTwoLinks), chosen(kChosen);
    Settings settings;
    settings.socket_ifname = "net1,net0";  // set-up takes the system's first of these
    settings.paths = "auto";
    test::require(
        must(comm::choose_paths(settings, {})) == std::vector<std::string>{"net1", "net0"},
        "the paths");
    settings.socket_ifname = "net0";
    test::require(must(comm::choose_paths(settings, {})) == std::vector<std::string>{""},
                  "no path beside that of set-up");
    Traffic traffic(test_ranks, 7);
    traffic.run(5);
    test::require(network_of(traffic.rank()).interfaces_to(1 - test_ranks.first()).size() == 2,
                  "a backup");
    test_ranks.barrier();
  }));
}

TEST_CASE("the paths that ranks find themselves do not cross from one network to another",
          "[req:3.14]") {
  // Ranks of one host start with different links.
  const TestHosts hosts(2, 3);
  const bool is_strict = GENERATE(false, true);
  if (is_strict) hosts.refuse_detours();
  const Nodes nodes{{2, 2}};
  RankFixture fixture(LaunchMode::processes, nodes.ranks(), [&](TestRanks& test_ranks) {
    hosts.enter(nodes.node_of(test_ranks.first()));
    const Environment environment(kOnTwoLinks), found(kFound);
    Rank rank(test_ranks, 4096, kWorld);
    const int first_other = test_ranks.first() < 2 ? 2 : 0;
    check_ends(test_ranks, rank, first_other + test_ranks.first() % 2);
    check_ends(test_ranks, rank, first_other + 1 - test_ranks.first() % 2);
    // Uses the rank with the other local rank number.
    collect_until_error(test_ranks, rank, 3 - test_ranks.first());
    test_ranks.barrier();
  });
  REQUIRE(fixture.wait_for_word(kRounds, 3, 30s));
  CHECK(await_path_of_all(fixture, nodes.ranks(), 0));
  hosts.cut(1, 1);
  const std::uint64_t rounds = fixture.shared().words[kRounds];
  CHECK(fixture.wait_for_word(kRounds, rounds + 3, 30s));
  fixture.shared().words[kFinish] = 1;
  check_all_ok(fixture.collect(40s));
}

TEST_CASE("hosts that name their links in another order use each for one path", "[req:3.14]") {
  const TestHosts hosts(2, 3);
  hosts.refuse_detours();
  constexpr std::size_t kDone = 100, kGoOn = 101;  // Traffic uses the words before
  RankFixture fixture(LaunchMode::processes, 2, [&](TestRanks& test_ranks) {
    hosts.enter(test_ranks.first());
    const Environment environment(kOnTwoLinks);
    const char* const paths = test_ranks.first() == 0 ? "net0,net1" : "net1,net0";
    const Environment own(Variables{{"ORIEL_SOCKET_IFNAME", "net2"}, {"ORIEL_PATHS", paths}});
    Traffic traffic(test_ranks, 11);
    const int other = 1 - test_ranks.first();
    for (const int path : {0, 1}) {
      traffic.run(20);
      fetch(traffic.rank(), other, 2 * kPart);
      const int used = pace_of(traffic.rank(), other).path;
      test::require(used == path, "the path is " + std::to_string(used));
      test_ranks.barrier();
      ++test_ranks.word(kDone);
      while (path == 0 && test_ranks.word(kGoOn) == 0) std::this_thread::sleep_for(1ms);
    }
    check_ends(test_ranks, traffic.rank(), other);
  });
  REQUIRE(fixture.wait_for_word(kDone, 2, 30s));
  hosts.cut(1, 0);
  fixture.shared().words[kGoOn] = 1;
  check_all_ok(fixture.collect(40s));
}

TEST_CASE("a host with one link is reached by the same one of others, which have two",
          "[req:3.14]") {
  const TestHosts hosts(3, 2);
  hosts.refuse_detours();
  check_all_ok(run_ranks(LaunchMode::processes, 3, [&](TestRanks& test_ranks) {
    hosts.enter(test_ranks.first());
    const Environment environment(kOnTwoLinks), chosen(kChosen);
    const bool has_one = test_ranks.first() == 1;
    const Environment own(has_one ? Variables{{"ORIEL_SOCKET_IFNAME", "net0"}} : Variables{});
    Traffic traffic(test_ranks, 13);
    traffic.run(20);
    for (int other = 0; other < 3; ++other) {
      if (other == test_ranks.first()) continue;
      fetch(traffic.rank(), other, 3 * kPart);
      const bool is_alone = has_one || other == 1;
      const auto names = network_of(traffic.rank()).interfaces_to(other);
      test::require(names.size() == (is_alone ? 1 : 2), "the number of paths");
      test::require(!is_alone || has_one || names[0] == "net0", "the link of both");
    }
    collect(traffic.rank().comm, 500);
    test_ranks.barrier();
  }));
}

TEST_CASE("a host whose links are both down is named by all others", "[req:3.14]") {
  const TestHosts hosts(3, 3);
  const Nodes nodes{{1, 1, 1}};
  RankFixture fixture(LaunchMode::processes, nodes.ranks(), [&](TestRanks& test_ranks) {
    hosts.enter(test_ranks.first());
    const Environment environment(kOnTwoLinks), set_up(Variables{{"ORIEL_SOCKET_IFNAME", "net2"}});
    Rank rank(test_ranks, 4096, kWorld);
    reduce_until_it_fails(rank.comm, 1000, [&] {
      ++test_ranks.word(kRounds + static_cast<std::size_t>(test_ranks.first()));
    });
    require_silent(rank.comm, 1);
    test_ranks.barrier();
  });
  REQUIRE(fixture.wait_for_word(kRounds, 5, 30s));
  hosts.cut(1, 0);
  hosts.cut(1, 1);
  check_all_ok(fixture.collect(40s));
}

TEST_CASE("a host that is cut off, and reports it first, names itself", "[req:3.14][req:3.19]") {
  // All ranks learn of the failure by set-up's link net2. Only the cut-off host makes a request.
  // Tests one path and two paths in parallel, as each waits for a peer timeout.
  constexpr int kCutOff = 1;
  const TestHosts hosts[2] = {TestHosts(3, 3), TestHosts(3, 3)};
  const char* const paths[2] = {"net0", "net0,net1"};
  std::vector<std::unique_ptr<RankFixture>> fixtures;
  for (std::size_t i = 0; i < 2; ++i) {
    fixtures.push_back(
        std::make_unique<RankFixture>(LaunchMode::processes, 3, [&, i](TestRanks& test_ranks) {
          hosts[i].enter(test_ranks.first());
          const Environment environment(kOnTwoLinks);
          const Environment links(
              Variables{{"ORIEL_SOCKET_IFNAME", "net2"}, {"ORIEL_PATHS", paths[i]}});
          Rank rank(test_ranks, 4096, kWorld);
          rank.sync("the first barrier");
          test_ranks.barrier();  // no rank is still in the first barrier
          ++test_ranks.word(kRounds);
          test_ranks.await(kFinish);
          if (test_ranks.first() == kCutOff) {
            require(device::world_signal(device::Thread(), rank.view(), 0, 0).outcome, "a signal");
          }
          require_silent(rank.comm, kCutOff);
          test_ranks.barrier();
        }));
  }
  for (std::size_t i = 0; i < 2; ++i) {
    REQUIRE(fixtures[i]->wait_for_word(kRounds, 3, 30s));
    hosts[i].cut(kCutOff, 0);
    hosts[i].cut(kCutOff, 1);
    fixtures[i]->shared().words[kFinish] = 1;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    INFO(paths[i]);
    check_all_ok(fixtures[i]->collect(40s));
  }
}

}  // namespace oriel::test
