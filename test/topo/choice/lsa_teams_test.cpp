// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/choice/lsa_teams.hpp"

#include <catch2/catch.hpp>

#include "topo/choice/host_ranks.hpp"
#include "topo/choice/rank_paths.hpp"

namespace oriel::topo {
namespace {

using Lists = std::vector<std::vector<int>>;

/// Returns a rank on each of `count` GPUs of one machine. Each rank sees all GPUs and reaches those
/// for which `reach` holds.
template <typename Reach>
std::vector<RankInfo> gpus(int count, Reach reach) {
  std::vector<RankInfo> ranks;
  for (int device = 0; device < count; ++device) {
    RankInfo& info = ranks.emplace_back(on_gpu(1, device));
    info.seen.clear();
    for (int other = 0; other < count; ++other) {
      info.seen.push_back(SeenDevice{uuid(other), reach(device, other)});
    }
  }
  return ranks;
}

std::vector<RankInfo> hosts(const std::vector<std::uint64_t>& host_of_rank) {
  std::vector<RankInfo> ranks;
  for (const auto host : host_of_rank) ranks.push_back(on_host(host, ranks.size() + 1));
  return ranks;
}

/// Checks that `team` and `index` agree with the member lists.
void check_indices(const LsaTeams& teams, std::size_t ranks) {
  REQUIRE(teams.team.size() == ranks);
  REQUIRE(teams.index.size() == ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto& members = teams.members_of(static_cast<int>(rank));
    CHECK(members.at(static_cast<std::size_t>(teams.index[rank])) == static_cast<int>(rank));
  }
}

}  // namespace

TEST_CASE("nodes of 7 and 8 ranks make teams of 7 and 8", "[req:1.14]") {
  std::vector<std::uint64_t> host_of_rank(7, 1);
  host_of_rank.resize(15, 2);
  const auto teams = form_lsa_teams(hosts(host_of_rank));
  CHECK(teams.members == Lists{{0, 1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12, 13, 14}});
  CHECK(teams.index[7] == 0);
  CHECK(teams.team[14] == 1);
  check_indices(teams, 15);
}

TEST_CASE("a rank that keeps apart maps nobody and is mapped by nobody", "[req:5.13]") {
  auto ranks = gpus(4, [](int, int) { return true; });
  ranks[3].uuid = ranks[2].uuid;  // shares the GPU of rank 2
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 2, 3}});
  ranks[2].keeps_apart = true;
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 3}, {2}});
  CHECK(rank_path(ranks[0], ranks[1]).kind == ranks[0].seen[1].path.kind);
  CHECK(rank_path(ranks[0], ranks[2]).kind == PathKind::host_memory);
  CHECK(rank_path(ranks[2], ranks[3]).kind == PathKind::host_memory);
}

TEST_CASE("descriptors travel inside one network namespace and one user only", "[req:1.14]") {
  auto ranks = hosts({1, 1, 1, 1});
  ranks[1].node.network_namespace = 78;
  ranks[2].uid = 12;
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 3}, {1}, {2}});
  SECTION("an unknown namespace equals no other") {
    ranks[0].node.network_namespace = ranks[3].node.network_namespace = 0;
    CHECK(form_lsa_teams(ranks).members == Lists{{0}, {1}, {2}, {3}});
  }
  SECTION("inside one process nothing needs to travel") {
    for (auto& rank : ranks) {
      rank.process = 9;
      rank.node.network_namespace = 0;
    }
    CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 2, 3}});
  }
}

TEST_CASE("host memory and GPU memory do not mix", "[req:1.14]") {
  auto ranks = gpus(4, [](int, int) { return true; });
  ranks[2] = on_host(1, 3);
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 3}, {2}});
}

TEST_CASE("reach in one direction only does not make a team", "[req:1.14][H2]") {
  const auto ranks = gpus(3, [](int from, int to) { return !(from == 1 && to == 0); });
  CHECK(can_map(ranks[0], ranks[1]));
  CHECK_FALSE(can_map(ranks[1], ranks[0]));
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 2}, {1}});
}

TEST_CASE("reach that is not transitive: a rank must reach every member", "[req:1.14]") {
  // A chain: each GPU reaches its neighbours. GPU 2 reaches 1 but not 0, which is in the team of 1.
  const auto ranks = gpus(5, [](int from, int to) { return std::abs(from - to) <= 1; });
  const auto teams = form_lsa_teams(ranks);
  CHECK(teams.members == Lists{{0, 1}, {2, 3}, {4}});
  check_indices(teams, 5);
}

TEST_CASE("ranks that share a GPU are one team though no peer access joins them", "[req:1.14]") {
  auto ranks = gpus(2, [](int, int) { return false; });
  ranks.push_back(ranks[0]);
  ranks.back().process = 40;
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 2}, {1}});
}

TEST_CASE("a GPU that is hidden from its peers counts as reachable", "[req:1.14]") {
  auto ranks = gpus(4, [](int, int) { return false; });
  for (auto& rank : ranks) {
    rank.seen = {SeenDevice{rank.uuid, true}};
    rank.device = 0;
  }
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 2, 3}});
  ranks[3].node.host = 2;
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 2}, {3}});
}

namespace {

/// Returns ranks on the GPUs of `machines` machines with `each` GPUs, all in one fabric clique. A
/// process sees the GPUs of its own machine.
std::vector<RankInfo> fabric(int machines, int each) {
  std::vector<RankInfo> ranks;
  for (int rank = 0; rank < machines * each; ++rank) {
    RankInfo& info = ranks.emplace_back(on_gpu(static_cast<std::uint64_t>(rank / each) + 1, rank));
    info.node.network_namespace = info.node.host + 1000;
    info.fabric = FabricClique{{}, 5};
    info.fabric_handles = true;
    info.seen.clear();
    for (int peer = rank / each * each; peer < (rank / each + 1) * each; ++peer) {
      info.seen.push_back(SeenDevice{uuid(peer), true});
    }
  }
  return ranks;
}

}  // namespace

TEST_CASE("a device hidden from CUDA that NVML reports is known, not assumed", "[req:2.3][H1]") {
  // CUDA shows every process its own GPU only. NVML reports that 0 and 1, and 2 and 3, reach each
  // other.
  auto ranks = gpus(4, [](int from, int to) { return from / 2 == to / 2; });
  for (auto& rank : ranks) {
    rank.device = 0;
    for (auto& device : rank.seen) device.visible = device.uuid == rank.uuid;
  }
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 1}, {2, 3}});
  // If no source reports hidden devices, they count as reachable.
  for (auto& rank : ranks) std::erase_if(rank.seen, [](auto& device) { return !device.visible; });
  CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 2, 3}});
}

TEST_CASE("a fabric clique across hosts makes one team where handles can travel", "[req:2.3]") {
  CHECK(form_lsa_teams(fabric(2, 2)).members == Lists{{0, 1, 2, 3}});
  auto ranks = fabric(2, 2);
  SECTION("not without fabric handles") {
    ranks[3].fabric_handles = false;
    CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 2}, {3}});
  }
  SECTION("not between cliques, nor clusters") {
    ranks[2].fabric->clique = 6;
    ranks[3].fabric->cluster[0] = std::byte{1};
    CHECK(form_lsa_teams(ranks).members == Lists{{0, 1}, {2, 3}});
  }
  SECTION("not where NVML knows no clique") {
    ranks[0].fabric.reset();
    CHECK(form_lsa_teams(ranks).members == Lists{{0, 1}, {2, 3}});
  }
  SECTION("not across nodes that the user has named") {
    ranks[2].node.named = ranks[3].node.named = true;
    CHECK(form_lsa_teams(ranks).members == Lists{{0, 1}, {2, 3}});
    for (auto& rank : ranks) rank.node = NodeIdentity{9, rank.node.network_namespace, true};
    CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 2, 3}});
  }
  SECTION("on one host they stand in for descriptors") {
    for (auto& rank : ranks) rank.node.host = 1;
    CHECK(form_lsa_teams(ranks).members == Lists{{0, 1, 2, 3}});
    for (auto& rank : ranks) rank.fabric_handles = false;
    CHECK(form_lsa_teams(ranks).members == Lists{{0, 1}, {2, 3}});
  }
}

TEST_CASE("a team that spans hosts is full with as many as kernels can do with", "[req:2.3]") {
  const auto teams = form_lsa_teams(fabric(3, 4), 8);
  CHECK(teams.members == Lists{{0, 1, 2, 3, 4, 5, 6, 7}, {8, 9, 10, 11}});
  check_indices(teams, 12);
  // The ranks of one host stay one team beyond the limit. The communicator's start refuses it.
  CHECK(form_lsa_teams(fabric(1, 10), 8).members.size() == 1);
}

TEST_CASE("a host that does not fit whole into a team of several begins the next one",
          "[req:2.3]") {
  CHECK(form_lsa_teams(fabric(3, 3), 8).members == Lists{{0, 1, 2, 3, 4, 5}, {6, 7, 8}});
  CHECK(form_lsa_teams(fabric(2, 6), 8).members == Lists{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}});
  CHECK(form_lsa_teams(fabric(5, 3), 8).members ==
        Lists{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}, {12, 13, 14}});
  CHECK(form_lsa_teams(fabric(3, 5), 11).members ==
        Lists{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {10, 11, 12, 13, 14}});
  // A small host fills the room that a large one has left.
  auto ranks = fabric(2, 6);
  ranks.push_back(fabric(7, 2).back());
  ranks.back().uuid = uuid(40);
  CHECK(form_lsa_teams(ranks, 8).members == Lists{{0, 1, 2, 3, 4, 5, 12}, {6, 7, 8, 9, 10, 11}});
  // The ranks of 3 hosts in round-robin order.
  const auto blocks = fabric(3, 3);
  std::vector<RankInfo> dealt;
  for (std::size_t i = 0; i < 9; ++i) dealt.push_back(blocks[i % 3 * 3 + i / 3]);
  const auto teams = form_lsa_teams(dealt, 8);
  CHECK(teams.members == Lists{{0, 1, 3, 4, 6, 7}, {2, 5, 8}});
  check_indices(teams, 9);
}

TEST_CASE("the size limit of an LSA team counts only those ranks of a node that can join it",
          "[req:2.3]") {
  // Two hosts of 4 GPUs and 4 ranks on the CPU each: the GPUs of both fit.
  std::vector<RankInfo> ranks;
  for (const RankInfo& gpu : fabric(2, 4)) {
    ranks.push_back(gpu);
    ranks.push_back(gpu);
    ranks.back().kind = DeviceKind::host;
    ranks.back().fabric_handles = false;
  }
  CHECK(form_lsa_teams(ranks, 8).members ==
        Lists{{0, 2, 4, 6, 8, 10, 12, 14}, {1, 3, 5, 7}, {9, 11, 13, 15}});
}

TEST_CASE("domains of descriptors follow processes, namespaces, users and hosts", "[req:2.3]") {
  auto ranks = fabric(2, 3);
  const std::vector<int> all{0, 1, 2, 3, 4, 5};
  CHECK(descriptor_domains(ranks, all) == std::vector<int>{0, 0, 0, 1, 1, 1});
  CHECK(descriptor_domains(ranks, std::vector<int>{4, 0, 5}) == std::vector<int>{0, 1, 0});
  ranks[1].uid = 5;
  ranks[4].node.network_namespace = 0;
  CHECK(descriptor_domains(ranks, all) == std::vector<int>{0, 1, 0, 2, 3, 2});
}

}  // namespace oriel::topo
