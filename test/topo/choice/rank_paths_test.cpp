// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/rank_paths.hpp"

#include <algorithm>
#include <ctime>
#include <random>

#include <catch2/catch.hpp>

#include "support/words.hpp"
#include "topo/choice/host_ranks.hpp"

namespace oriel::topo {
namespace {

using test::has;

void see(RankInfo& from, const RankInfo& to, PathFacts path) {
  from.seen.push_back({to.uuid, path.kind != PathKind::host_memory, true, path});
  std::sort(from.seen.begin(), from.seen.end(),
            [](const SeenDevice& a, const SeenDevice& b) { return a.uuid < b.uuid; });
}

/// Returns random ranks of all kinds on at most 3 machines.
std::vector<RankInfo> random_ranks(std::mt19937& random) {
  std::vector<RankInfo> ranks;
  const std::size_t count = 1 + random() % 24;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t host = 1 + random() % 3;
    const auto begin = ranks.size();
    if (random() % 3 == 0) {
      ranks.push_back(on_host(host, 1 + random() % 40, static_cast<int>(random() % 3) - 1));
    } else {
      ranks.push_back(on_gpu(host, static_cast<int>(random() % 12)));
      if (random() % 2 == 0)
        ranks.back().fabric = FabricClique{{}, static_cast<unsigned>(random() % 2)};
      ranks.back().fabric_handles = ranks.back().fabric.has_value();
      ranks.back().links_class = static_cast<std::uint8_t>(random() % 14);
    }
    ranks[begin].node.network_namespace = 77 + random() % 2;
    ranks[begin].host_class = static_cast<std::uint8_t>(random() % 12);
    ranks[begin].network_class = static_cast<std::uint8_t>(random() % 10);
  }
  for (RankInfo& from : ranks) {
    for (const RankInfo& to : ranks) {
      if (from.kind != DeviceKind::cuda || to.kind != DeviceKind::cuda) continue;
      if (find_seen(from, to.uuid) != nullptr || random() % 3 == 0) continue;
      see(from, to,
          {static_cast<PathKind>(1 + random() % 3), static_cast<std::uint8_t>(random() % 3),
           static_cast<std::uint8_t>(random() % 14), random() % 2 == 0});
    }
  }
  return ranks;
}

}  // namespace

TEST_CASE("bandwidths fall into classes by powers of two", "[req:2.6]") {
  CHECK(bandwidth_class(0) == 0);
  CHECK(bandwidth_class(0.9) == 0);
  CHECK(bandwidth_class(1) == 1);
  CHECK(bandwidth_class(2047.9) == 11);
  CHECK(bandwidth_class(2048) == 12);
  CHECK(bandwidth_class(3825) == 12);
  CHECK(bandwidth_class(1e30) == kBandwidthClassMost);
  CHECK(bandwidth_class(-1) == 0);
}

TEST_CASE("CPU ranks of one node have paths by host memory, of two nodes by network", "[req:2.6]") {
  const std::vector<RankInfo> ranks{on_host(1, 1, 0), on_host(1, 1, 0),  on_host(1, 2, 0),
                                    on_host(1, 3, 1), on_host(1, 4, -1), on_host(2, 5, 0)};
  const RankPaths paths(ranks);
  const PathFacts host{PathKind::host_memory, 0, 0, false};
  CHECK(paths.between(0, 1) == host);
  CHECK(paths.between(0, 2) == PathFacts{PathKind::host_memory, 1, 0, false});
  CHECK(paths.between(0, 3) == PathFacts{PathKind::host_memory, 2, 0, false});
  CHECK(paths.between(4, 0) == PathFacts{PathKind::host_memory, 2, 0, false});
  CHECK(paths.between(0, 5) == PathFacts{});
  CHECK(paths.between(5, 5).kind == PathKind::same_device);
  CHECK(paths.summary() ==
        "15 pairs of ranks: 1 by host memory; 2 by host memory, 1 hop; 7 by host memory, 2 hops; 5 "
        "by network");
}

TEST_CASE("ranks that can pass each other no descriptors have the network, also on one node",
          "[req:2.6]") {
  std::vector<RankInfo> ranks{on_host(1, 1), on_host(1, 2), on_host(1, 3), on_host(1, 3)};
  ranks[1].node.network_namespace = 78;
  ranks[2].uid = 1000;
  ranks.push_back(on_gpu(1, 0));
  ranks.push_back(on_gpu(1, 1));
  ranks[5].node.network_namespace = 78;
  for (RankInfo& rank : ranks) rank.network_class = 5;
  const RankPaths paths(ranks);
  const PathFacts network{PathKind::network, 0, 5, false};
  CHECK(paths.between(0, 1) == network);
  CHECK(paths.between(0, 2) == network);
  CHECK(paths.between(2, 3).kind == PathKind::host_memory);  // threads of one process
  CHECK(paths.between(4, 5) == network);
  CHECK_FALSE(can_map(ranks[0], ranks[1]));
  CHECK(paths.between(1, 4) == network);
}

TEST_CASE("host memory and networks have the class of the slower side, where it is known",
          "[req:2.6]") {
  std::vector<RankInfo> ranks{on_host(1, 1, 0), on_host(1, 2, 0), on_gpu(1, 0), on_gpu(1, 1),
                              on_host(2, 9, 0)};
  ranks[0].host_class = 11;
  ranks[1].host_class = 10;
  ranks[2].host_class = 9;
  ranks[3].host_class = 8;
  ranks[0].network_class = 9;
  ranks[1].network_class = 0;
  ranks[4].network_class = 7;
  see(ranks[2], ranks[3], {PathKind::host_memory, 2, 8, false});
  see(ranks[3], ranks[2], {PathKind::host_memory, 2, 8, false});
  const RankPaths paths(ranks);
  CHECK(paths.between(0, 1) == PathFacts{PathKind::host_memory, 1, 10, false});
  CHECK(paths.between(2, 3) == PathFacts{PathKind::host_memory, 2, 8, false});
  CHECK(paths.between(1, 2) == PathFacts{PathKind::host_memory, 2, 9, false});
  CHECK(paths.between(0, 4) == PathFacts{PathKind::network, 0, 7, false});
  CHECK(paths.between(1, 4) == PathFacts{PathKind::network, 0, 0, false});
  CHECK(paths.summary() ==
        "10 pairs of ranks: 1 by host memory, 1 hop, from 512 Gbit/s; 2 by host memory, 2 hops, "
        "from 256 Gbit/s; 3 by host memory, 2 hops, from 128 Gbit/s; 1 by network, from 64 Gbit/s; "
        "3 by network");
  auto slower = ranks;
  slower[4].network_class = 6;
  CHECK(RankPaths(slower).hash() != paths.hash());
}

TEST_CASE("the summary of rank paths counts the pairs whose mapping is assumed", "[req:2.3]") {
  std::vector<RankInfo> ranks{on_gpu(1, 0), on_gpu(1, 1), on_gpu(1, 2), on_host(1, 60)};
  const PathFacts links{PathKind::nvlink, 1, 12, true};
  see(ranks[0], ranks[1], links);
  see(ranks[1], ranks[0], links);
  see(ranks[0], ranks[2], links);
  const RankPaths paths(ranks);
  // Assumed: the paths from GPU 2 to the others, and the path from GPU 1 to GPU 2.
  CHECK(paths.summary().ends_with(
      "; of 2 no source says that they map each other's memory, which is assumed"));
  ranks.pop_back();
  ranks.pop_back();
  CHECK_FALSE(has(RankPaths(ranks).summary(), "assumed"));
}

TEST_CASE("if two GPUs report different paths between them, the worse facts of both count",
          "[req:2.6]") {
  std::vector<RankInfo> ranks{on_gpu(1, 0), on_gpu(1, 1), on_gpu(1, 2), on_gpu(2, 3)};
  see(ranks[0], ranks[1], {PathKind::nvlink, 1, 12, true});
  see(ranks[1], ranks[0], {PathKind::nvlink, 2, 11, false});
  see(ranks[0], ranks[2], {PathKind::pcie_peer, 1, 8, true});
  see(ranks[2], ranks[0], {PathKind::host_memory, 2, 8, false});
  see(ranks[1], ranks[2], {PathKind::nvlink, 1, 12, false});  // the shorter direction lacks atomics
  see(ranks[2], ranks[1], {PathKind::nvlink, 2, 12, true});
  ranks.push_back(ranks[0]);  // another rank on the same GPU
  ranks.back().process = 50;
  ranks.push_back(on_host(1, 60, 0));
  const RankPaths paths(ranks);
  CHECK(paths.between(0, 1) == PathFacts{PathKind::nvlink, 2, 11, false});
  CHECK(paths.between(2, 0).kind == PathKind::host_memory);
  CHECK(paths.between(0, 3).kind == PathKind::network);
  CHECK(paths.between(0, 4) == PathFacts{PathKind::same_device, 0, 0, true});
  CHECK(paths.between(1, 2) == PathFacts{PathKind::nvlink, 2, 12, false});
  CHECK(paths.between(1, 5) == PathFacts{PathKind::host_memory, 2, 0, false});
  CHECK(paths.between(3, 5).kind == PathKind::network);
}

TEST_CASE(
    "where one side does not know, because the other is hidden from it, the other's report counts",
    "[req:2.6]") {
  std::vector<RankInfo> ranks{on_gpu(1, 0), on_gpu(1, 1), on_gpu(1, 2)};
  const PathFacts links{PathKind::nvlink, 1, 12, true};
  see(ranks[0], ranks[1], links);
  see(ranks[0], ranks[2], {PathKind::host_memory, 2, 8, false});
  for (int order = 0; order < 2; ++order) {
    const RankPaths paths(ranks);
    CHECK(paths.between(order == 0 ? 0 : 2, 1) == links);
    CHECK(paths.between(0, 2).kind == PathKind::host_memory);
    // No source reports this pair, so peer access is assumed.
    CHECK(paths.between(order == 0 ? 2 : 0, 1) == PathFacts{PathKind::pcie_peer, 0, 0, false});
    std::reverse(ranks.begin(), ranks.end());
  }
}

TEST_CASE("a fabric clique is NVLink between hosts, where handles travel", "[req:2.6]") {
  std::vector<RankInfo> ranks{on_gpu(1, 0), on_gpu(2, 1)};
  for (auto& rank : ranks) {
    rank.fabric = FabricClique{{}, 3};
    rank.fabric_handles = true;
    rank.links_class = 12;
  }
  ranks[1].links_class = 11;
  CHECK(RankPaths(ranks).between(1, 0) == PathFacts{PathKind::nvlink, 2, 11, true});
  ranks[0].fabric_handles = false;
  CHECK(RankPaths(ranks).between(1, 0) == PathFacts{});
}

TEST_CASE("paths are symmetric, and the ones of the pairs, for random ranks", "[req:2.6]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const auto ranks = random_ranks(random);
    const RankPaths paths(ranks);
    REQUIRE(paths.size() == static_cast<int>(ranks.size()));
    for (int a = 0; a < paths.size(); ++a) {
      for (int b = 0; b < paths.size(); ++b) {
        const PathFacts path = paths.between(a, b);
        REQUIRE(path == paths.between(b, a));
        if (a == b) continue;
        const RankInfo& from = ranks[static_cast<std::size_t>(a)];
        const RankInfo& to = ranks[static_cast<std::size_t>(b)];
        REQUIRE(path.kind >= rank_path(from, to).kind);
        const bool team = can_map(from, to) && can_map(to, from);
        if (team) REQUIRE(path.kind < PathKind::network);
        if (descriptors_travel(from, to)) REQUIRE(path.kind != PathKind::network);
      }
    }
    // All ranks hold the same list after the exchange.
    std::vector<RankInfo> received;
    for (const RankInfo& info : ranks) {
      const auto decoded = decode_rank_info(encode(info));
      REQUIRE(decoded.ok());
      received.push_back(*decoded);
    }
    REQUIRE(RankPaths(received).hash() == paths.hash());
  }
}

TEST_CASE("the hash differs for different paths, peers and teams", "[req:2.6]") {
  const std::vector<RankInfo> ranks{on_gpu(1, 0), on_gpu(1, 1), on_gpu(1, 2)};
  const auto hash_with = [&](PathFacts path, std::size_t to) {
    auto changed = ranks;
    see(changed[0], ranks[to], path);
    see(changed[to], ranks[0], path);
    return RankPaths(changed).hash();
  };
  const PathFacts path{PathKind::nvlink, 1, 8, true};
  const auto base = hash_with(path, 1);
  CHECK(base == hash_with(path, 1));
  CHECK(base != hash_with(path, 2));
  CHECK(base != hash_with({PathKind::pcie_peer, 1, 8, true}, 1));
  CHECK(base != hash_with({PathKind::nvlink, 2, 8, true}, 1));
  CHECK(base != hash_with({PathKind::nvlink, 1, 9, true}, 1));
  CHECK(base != hash_with({PathKind::nvlink, 1, 8, false}, 1));
  LsaTeams one{{{0, 1}}, {0, 0}, {0, 1}};
  LsaTeams two{{{0}, {1}}, {0, 1}, {0, 0}};
  CHECK(add_teams(base, one) != add_teams(base, two));
  CHECK(RankPaths().hash() != RankPaths(std::vector<RankInfo>{on_host(1, 1)}).hash());
}

TEST_CASE("the text of LSA teams joins neighbouring ranks and cuts long lists", "[req:2.6]") {
  CHECK(text_of(LsaTeams{{{0, 1, 2, 4}, {3}}, {}, {}}) == "2 LSA teams: 0-2+4, 3");
  LsaTeams many;
  for (int i = 0; i < 20; ++i) many.members.push_back({i});
  CHECK(text_of(many).ends_with("14, 15 and 4 more"));
  CHECK(RankPaths(std::vector<RankInfo>{on_host(1, 1)}).summary() == "0 pairs of ranks");
}

}  // namespace oriel::topo
