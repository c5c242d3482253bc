// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/hierarchy_plan.hpp"

#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/plan/plan_values.hpp"

/// Tests the choices of kernels::plan_hierarchy (3.16).
namespace {

using namespace oriel;
using namespace oriel::kernels;

std::vector<std::vector<int>> groups_of(int ranks, int size) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank % size == 0) groups.emplace_back();
    groups.back().push_back(rank);
  }
  return groups;
}

struct Case {
  int ranks = 2;
  int of_node = 1;
  Backend backend = Backend::host;
  bool deterministic = false;
  std::uint64_t scratch_bytes = 16 << 20;
};

HierarchyPlan plan_of(const Case& where, Collective collective, std::uint64_t bytes) {
  const auto layout = make_hierarchy_layout(where.ranks, 4096, where.scratch_bytes);
  REQUIRE(layout.ok());
  HierarchyFacts facts;
  facts.collective = collective;
  facts.count = bytes;
  facts.backend = where.backend;
  facts.deterministic = where.deterministic;
  facts.max_ctas = 8;
  const GroupingTables teams(groups_of(where.ranks, where.of_node), 0);
  const GroupingTables ranks(groups_of(where.ranks, 1), 0);
  const auto plan = plan_hierarchy(facts, layout.value(), teams, ranks);
  REQUIRE(plan.ok());
  return plan.value();
}

}  // namespace

TEST_CASE("small messages of every collective take one hop among nodes", "[req:3.16]") {
  for (const Collective collective : kCollectives) {
    INFO(name_of(collective));
    for (const Backend backend : {Backend::host, Backend::cuda}) {
      for (const bool deterministic : {false, true}) {
        const HierarchyPlan plan = plan_of({4, 2, backend, deterministic}, collective, 1000);
        CHECK(plan.one_hop);
        CHECK(plan.grouped_by == GroupedBy::rank);
        CHECK(plan.shape.groups == 4);
        CHECK(plan.rounds == 1);
        CHECK(plan.shape.unit >= 1000);
      }
      CHECK_FALSE(plan_of({4, 4, backend}, collective, 8).one_hop);  // one team
      CHECK_FALSE(plan_of({4, 2, backend}, collective, 2 << 20).one_hop);
      CHECK_FALSE(plan_of({4096, 8, backend}, collective, 1000).one_hop);  // over 1 MiB in all
    }
  }
  // More than 40 CPU ranks share the messages of an all-gather or a reduce-scatter by team.
  CHECK(plan_of({64, 8}, Collective::all_reduce, 8).one_hop);
  CHECK_FALSE(plan_of({64, 8}, Collective::all_gather, 8).one_hop);
  CHECK_FALSE(plan_of({64, 8}, Collective::reduce_scatter, 8).one_hop);
  CHECK(plan_of({64, 8, Backend::cuda}, Collective::all_gather, 8).one_hop);
}

TEST_CASE("a call goes in one hop only if the scratch memory has all slots for it", "[req:3.16]") {
  // Two ranks with 1 KiB for each. A reduce-scatter sends other bytes to each rank.
  for (const Collective collective : kCollectives) {
    INFO(name_of(collective));
    const std::uint64_t slots = collective == Collective::reduce_scatter ? 4 : 3;
    Case enough;
    enough.scratch_bytes = 3 * 64 + 2 * 2 * 64 + 2 * kHierarchyDepth * slots * 1024;
    CHECK(plan_of(enough, collective, 1024).one_hop);
    Case less = enough;
    less.scratch_bytes -= 2 * kHierarchyDepth * 64;
    CHECK_FALSE(plan_of(less, collective, 1024).one_hop);
  }
}
