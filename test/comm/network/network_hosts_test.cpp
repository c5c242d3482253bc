// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/system_table.hpp"
#include "comm/communicator/collective_sums.hpp"
#include "comm/support/network_ranks.hpp"
#include "comm/support/path_ranks.hpp"
#include "comm/support/test_hosts.hpp"
#include "net/support/nic_faults.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"

/// Ranks on separate hosts, which are network namespaces, over libfabric's tcp provider (3.13,
/// 3.18, 3.19).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;
using device::Thread;
using device::WorldOutcome;

const Variables kOnOneLink = {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                              {"ORIEL_SOCKET_IFNAME", "net0"}};

/// Runs the ranks of each node on the host with the node's number.
void run_on_hosts(const TestHosts& hosts, const Nodes& nodes, const Body& body) {
  INFO(nodes.text());
  check_all_ok(run_ranks(LaunchMode::processes, nodes.ranks(), [&](TestRanks& test_ranks) {
    hosts.enter(nodes.node_of(test_ranks.first()));
    const Environment environment(kOnOneLink);
    body(test_ranks);
  }));
}

}  // namespace

TEST_CASE("ranks on hosts of their own put, get, signal and meet over tcp", "[req:3.18]") {
  const std::uint64_t seed = test_seed();
  for (const Nodes& nodes : {Nodes{{2, 1, 1}}, Nodes{{3, 4}}}) {
    if (kSanitized && nodes.ranks() > 4) continue;
    const TestHosts hosts(static_cast<int>(nodes.sizes.size()));
    run_on_hosts(hosts, nodes, [&](TestRanks& test_ranks) { Traffic(test_ranks, seed).run(20); });
  }
}

TEST_CASE("one NIC has rings to ranks of its machine, and libfabric to others", "[req:3.18]") {
  const TestHosts hosts(2);
  const Nodes nodes{{2, 1}};
  run_on_hosts(hosts, nodes, [&](TestRanks& test_ranks) {
    // ORIEL_HOSTID makes two nodes of the two ranks on one host.
    const Environment named(
        Variables{{"ORIEL_HOSTID", "node" + std::to_string(test_ranks.first())}});
    Rank rank(test_ranks, 4096, kWorld);
    test::require(network_of(rank).fabric() != nullptr, "a fabric wire");
    const std::uint64_t sent = net::test::fabric_messages(network_of(rank).nic());
    const auto view = rank.window.view();
    const auto put_to = [&](int peer) {
      const auto posted = device::world_put(Thread(), rank.view(), peer, view, 8, view, 0, 8);
      require(device::world_wait(Thread(), rank.view(), posted), "a put");
    };
    if (test_ranks.first() == 0) {
      put_to(1);
      test::require(net::test::fabric_messages(network_of(rank).nic()) == sent, "by a ring");
      put_to(2);
      test::require(net::test::fabric_messages(network_of(rank).nic()) > sent, "by libfabric");
    }
    test_ranks.barrier();
    Traffic(test_ranks, 3).run(10);
  });
}

TEST_CASE("ORIEL_WIRE=fabric joins nodes of one host by libfabric, or none of them", "[req:3.13]") {
  skip_without_fabric();
  const Variables wire = {{"ORIEL_WIRE", "fabric"}, {"ORIEL_SOCKET_IFNAME", "lo"}};
  run_on_nodes({{1, 1}}, {{"ORIEL_FABRIC_PROVIDER", fabric_provider()}},
               [&](TestRanks& test_ranks) {
                 {
                   const Environment forced(wire);
                   Traffic(test_ranks, 4).run(10);
                 }
                 {
                   const Environment forced(test_ranks.first() == 0 ? wire : Variables{});
                   must_fail(try_to_join(test_ranks), ErrorCode::invalid_usage,
                             {"ORIEL_WIRE", "fabric on rank 0, auto on rank 1"});
                   test_ranks.barrier();
                 }
                 const Environment forced(wire);
                 const Environment other(test_ranks.first() == 1
                                             ? Variables{{"ORIEL_FABRIC_PROVIDER", "nobody's"}}
                                             : Variables{});
                 const auto failed = join(test_ranks).device_comm(kWorld);
                 must_fail(failed, ErrorCode::invalid_usage, {"nobody's", "rank 1", "libfabric1"});
                 test::require(failed.error().origin_rank() == 1, failed.error().to_string());
                 test_ranks.barrier();
               });
}

namespace {

/// Repeats all-reduces until one fails. The error must name `culprit`.
void reduce_until_named(TestRanks& test_ranks, Rank& rank, int culprit) {
  reduce_until_it_fails(rank.comm, 10'000,
                        [&] { ++test_ranks.word(static_cast<std::size_t>(test_ranks.first())); });
  require_silent(rank.comm, culprit);
}

/// Timeout that gives a NIC on a busy machine enough time to answer.
const Variables kForNics = {{"ORIEL_COLLECTIVE_TIMEOUT", "9s"}};

}  // namespace

TEST_CASE("collectives among two to four hosts are right for small and large counts",
          "[req:3.18]") {
  for (const Nodes& nodes : {Nodes{{4, 1}}, Nodes{{2, 3, 4}}, Nodes{{4, 4, 4, 4}}}) {
    if (kSanitized && nodes.ranks() > 5) continue;
    const TestHosts hosts(static_cast<int>(nodes.sizes.size()));
    run_on_hosts(hosts, nodes, [&](TestRanks& test_ranks) {
      auto comm = join(test_ranks);
      for (const std::size_t count : {1U, 1000U, 50'000U}) collect(comm, count);
      test_ranks.barrier();
    });
  }
}

TEST_CASE("packets that are lost change nothing but the time", "[req:3.18]") {
  if (const std::string lack = TestHosts::lack_of_loss(); !lack.empty()) {
    WARN("skipped: packets that are lost: " << lack);
    return;
  }
  const TestHosts hosts(2);
  hosts.drop(1);
  run_on_hosts(hosts, {{1, 2}}, [](TestRanks& test_ranks) {
    Traffic traffic(test_ranks, 5);
    traffic.run(8);
    for (const std::size_t count : {1U, 20'000U}) collect(traffic.rank().comm, count);
    test_ranks.barrier();
  });
}

TEST_CASE("a host whose link goes down in a collective is named by all others", "[req:3.19]") {
  const TestHosts hosts(3);
  const Nodes nodes{{1, 2, 1}};
  constexpr int kCut = 3;
  RankFixture fixture(LaunchMode::processes, nodes.ranks(), [&](TestRanks& test_ranks) {
    hosts.enter(nodes.node_of(test_ranks.first()));
    const Environment environment(kOnOneLink), timeout(kForNics);
    Rank rank(test_ranks, 4096, kWorld);
    // The host that is cut off names itself. Its set-up links are down too, so it receives nothing.
    reduce_until_named(test_ranks, rank, kCut);
    test_ranks.barrier();  // the end of a process is visible to all ranks
  });
  REQUIRE(fixture.wait_for_word(kCut, 5, 30s));
  hosts.cut(2);
  check_all_ok(fixture.collect(40s));
}

namespace {

/// Sets the keepalive idle time and interval to 1 s, so that a dead idle link ends within 5 s.
int set_short_keepalive(int fd, int level, int name, const void* value, socklen_t length) {
  const int second = 1;
  const bool is_pause = level == IPPROTO_TCP && (name == TCP_KEEPIDLE || name == TCP_KEEPINTVL);
  return is_pause ? ::setsockopt(fd, level, name, &second, sizeof second)
                  : ::setsockopt(fd, level, name, value, length);
}

}  // namespace

TEST_CASE("a host whose link goes down while all are idle is named by itself too", "[req:3.19]") {
  const TestHosts hosts(3);
  const Nodes nodes{{1, 2, 1}};
  constexpr int kCut = 3;
  RankFixture fixture(LaunchMode::processes, nodes.ranks(), [&](TestRanks& test_ranks) {
    hosts.enter(nodes.node_of(test_ranks.first()));
    const Environment environment(kOnOneLink);
    SystemTable table = sys();
    table.setsockopt = set_short_keepalive;
    const ScopedSystemTable scoped(table);
    auto comm = join(test_ranks);
    ++test_ranks.word(0);
    require_silent(comm, kCut);
    test_ranks.barrier();  // the end of a process is visible to all ranks
  });
  REQUIRE(fixture.wait_for_word(0, 4, 30s));
  hosts.cut(2);
  check_all_ok(fixture.collect(40s));
}

TEST_CASE("a NIC that dies is named by all, on rings and over libfabric", "[req:3.19]") {
  skip_without_fabric();
  const Variables settings = {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                              {"ORIEL_WIRE", GENERATE("auto", "fabric")},
                              {"ORIEL_SOCKET_IFNAME", "lo"},
                              kForNics.front()};
  run_on_nodes({{1, 1, 1}}, settings, [&](TestRanks& test_ranks) {
    Rank rank(test_ranks, 4096, kWorld);
    rank.sync("the first barrier");
    test_ranks.barrier();
    if (test_ranks.first() == 1) net::test::stop_nic(network_of(rank).nic());
    reduce_until_named(test_ranks, rank, 1);
    test_ranks.barrier();
  });
}

}  // namespace oriel::test
