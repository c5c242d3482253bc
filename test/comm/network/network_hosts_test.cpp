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
#include "comm/support/network_players.hpp"
#include "comm/support/path_players.hpp"
#include "comm/support/test_hosts.hpp"
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

/// Plays the ranks of each node on the host with the node's number.
void play_on_hosts(const TestHosts& hosts, const Nodes& nodes, const Body& body) {
  INFO(nodes.text());
  check_all_ok(play(Cast::processes, nodes.ranks(), [&](Players& players) {
    hosts.enter(nodes.node_of(players.first()));
    const Environment environment(kOnOneLink);
    body(players);
  }));
}

}  // namespace

TEST_CASE("ranks on hosts of their own put, get, signal and meet over tcp", "[req:3.18]") {
  const std::uint64_t seed = test_seed();
  for (const Nodes& nodes : {Nodes{{2, 1, 1}}, Nodes{{3, 4}}}) {
    if (kSanitized && nodes.ranks() > 4) continue;
    const TestHosts hosts(static_cast<int>(nodes.sizes.size()));
    play_on_hosts(hosts, nodes, [&](Players& players) { Traffic(players, seed).run(20); });
  }
}

TEST_CASE("one NIC has rings to ranks of its machine, and libfabric to others", "[req:3.18]") {
  const TestHosts hosts(2);
  const Nodes nodes{{2, 1}};
  play_on_hosts(hosts, nodes, [&](Players& players) {
    // ORIEL_HOSTID makes two nodes of the two ranks on one host.
    const Environment named(Variables{{"ORIEL_HOSTID", "node" + std::to_string(players.first())}});
    Rank rank(players, 4096, kWorld);
    test::require(network_of(rank).fabric() != nullptr, "a fabric wire");
    const std::uint64_t sent = net::test::fabric_messages(network_of(rank).nic());
    const auto view = rank.window.view();
    const auto put_to = [&](int peer) {
      const auto posted = device::world_put(Thread(), rank.view(), peer, view, 8, view, 0, 8);
      require(device::world_wait(Thread(), rank.view(), posted), "a put");
    };
    if (players.first() == 0) {
      put_to(1);
      test::require(net::test::fabric_messages(network_of(rank).nic()) == sent, "by a ring");
      put_to(2);
      test::require(net::test::fabric_messages(network_of(rank).nic()) > sent, "by libfabric");
    }
    players.barrier();
    Traffic(players, 3).run(10);
  });
}

TEST_CASE("ORIEL_WIRE=fabric joins nodes of one host by libfabric, or none of them", "[req:3.13]") {
  skip_without_fabric();
  const Variables wire = {{"ORIEL_WIRE", "fabric"}, {"ORIEL_SOCKET_IFNAME", "lo"}};
  play_on_nodes({{1, 1}}, {{"ORIEL_FABRIC_PROVIDER", fabric_provider()}}, [&](Players& players) {
    {
      const Environment forced(wire);
      Traffic(players, 4).run(10);
    }
    {
      const Environment forced(players.first() == 0 ? wire : Variables{});
      must_fail(try_to_join(players), ErrorCode::invalid_usage,
                {"ORIEL_WIRE", "fabric on rank 0, auto on rank 1"});
      players.barrier();
    }
    const Environment forced(wire);
    const Environment other(players.first() == 1 ? Variables{{"ORIEL_FABRIC_PROVIDER", "nobody's"}}
                                                 : Variables{});
    const auto failed = join(players).device_comm(kWorld);
    must_fail(failed, ErrorCode::invalid_usage, {"nobody's", "rank 1", "libfabric1"});
    test::require(failed.error().origin_rank() == 1, failed.error().to_string());
    players.barrier();
  });
}

namespace {

/// Repeats all-reduces until one fails. The error must name `culprit`.
void reduce_until_named(Players& players, Rank& rank, int culprit) {
  reduce_until_it_fails(rank.comm, 10'000,
                        [&] { ++players.word(static_cast<std::size_t>(players.first())); });
  require_silent(rank.comm, culprit);
}

/// Timeout that gives a NIC on a busy machine enough time to answer.
const Variables kForNics = {{"ORIEL_COLLECTIVE_TIMEOUT", "9s"}};

}  // namespace

TEST_CASE("collectives among hosts", "[req:3.18]") {
  for (const Nodes& nodes : {Nodes{{4, 1}}, Nodes{{2, 3, 4}}, Nodes{{4, 4, 4, 4}}}) {
    if (kSanitized && nodes.ranks() > 5) continue;
    const TestHosts hosts(static_cast<int>(nodes.sizes.size()));
    play_on_hosts(hosts, nodes, [&](Players& players) {
      auto comm = join(players);
      for (const std::size_t count : {1U, 1000U, 50'000U}) collect(comm, count);
      players.barrier();
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
  play_on_hosts(hosts, {{1, 2}}, [](Players& players) {
    Traffic traffic(players, 5);
    traffic.run(8);
    for (const std::size_t count : {1U, 20'000U}) collect(traffic.rank().comm, count);
    players.barrier();
  });
}

TEST_CASE("a host whose link goes down in a collective is named by all others", "[req:3.19]") {
  const TestHosts hosts(3);
  const Nodes nodes{{1, 2, 1}};
  constexpr int kCut = 3;
  Stage stage(Cast::processes, nodes.ranks(), [&](Players& players) {
    hosts.enter(nodes.node_of(players.first()));
    const Environment environment(kOnOneLink), patience(kForNics);
    Rank rank(players, 4096, kWorld);
    // The host that is cut off names itself. Its set-up links are down too, so it receives nothing.
    reduce_until_named(players, rank, kCut);
    players.barrier();  // the end of a process is visible to all ranks
  });
  REQUIRE(stage.wait_for_word(kCut, 5, 30s));
  hosts.cut(2);
  check_all_ok(stage.collect(40s));
}

namespace {

/// Sets the keepalive idle time and interval to 1 s, so that a dead idle link ends within 5 s.
int set_option_impatiently(int fd, int level, int name, const void* value, socklen_t length) {
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
  Stage stage(Cast::processes, nodes.ranks(), [&](Players& players) {
    hosts.enter(nodes.node_of(players.first()));
    const Environment environment(kOnOneLink);
    SystemTable table = sys();
    table.setsockopt = set_option_impatiently;
    const ScopedSystemTable scoped(table);
    auto comm = join(players);
    ++players.word(0);
    require_silent(comm, kCut);
    players.barrier();  // the end of a process is visible to all ranks
  });
  REQUIRE(stage.wait_for_word(0, 4, 30s));
  hosts.cut(2);
  check_all_ok(stage.collect(40s));
}

TEST_CASE("a NIC that dies is named by all, on rings and over libfabric", "[req:3.19]") {
  skip_without_fabric();
  const Variables settings = {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                              {"ORIEL_WIRE", GENERATE("auto", "fabric")},
                              {"ORIEL_SOCKET_IFNAME", "lo"},
                              kForNics.front()};
  play_on_nodes({{1, 1, 1}}, settings, [&](Players& players) {
    Rank rank(players, 4096, kWorld);
    rank.sync("the first barrier");
    players.barrier();
    if (players.first() == 1) network_of(rank).nic().stop();
    reduce_until_named(players, rank, 1);
    players.barrier();
  });
}

}  // namespace oriel::test
