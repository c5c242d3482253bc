// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "api/api_ranks.hpp"

/// Communicators whose ranks form two LSA teams, divided by ORIEL_HOSTID.
namespace oriel::test {

/// Returns the settings that place a rank on node `node`.
inline Variables of_node(int node) {
  return {{"ORIEL_HOSTID", "node" + std::to_string(node)}};
}

/// Two nodes: the first `first` of `ranks` ranks, and the rest.
struct TwoNodes {
  int ranks;
  int first;

  bool in_first(int rank) const { return rank < first; }
  std::vector<int> team_of(int rank) const {
    std::vector<int> team;
    for (int one = 0; one < ranks; ++one) {
      if (in_first(one) == in_first(rank)) team.push_back(one);
    }
    return team;
  }
  Variables variables_of(int rank) const {
    return {{"ORIEL_HOSTID", in_first(rank) ? "first" : "second"}};
  }
};

/// Registers a window, and checks that exactly the ranks of `team` reach each other's memory
/// through it. Returns the size of a slot in bytes.
inline std::size_t see_each_other(TestRanks& test_ranks, Communicator& comm,
                                  const std::vector<int>& team) {
  require(comm.lsa_team() == team, "the team");
  const auto memory = must(comm.allocate(4096));
  const auto window = must(comm.register_window(memory));
  const device::WindowView view = window.view();
  require(view.lsa_size == static_cast<int>(team.size()), "the size of the team");
  const auto value_of = [&](int index) {
    return static_cast<std::atomic<int>*>(view.lsa_peer(index, 0, sizeof(int)));
  };
  value_of(view.lsa_rank)->store(100 + test_ranks.first());
  test_ranks.barrier();
  for (std::size_t i = 0; i < team.size(); ++i) {
    require(value_of(static_cast<int>(i))->load() == 100 + team[i], "what a peer has stored");
  }
  test_ranks.barrier();
  return static_cast<std::size_t>(view.stride_4g) << 32;
}

/// Joins a communicator, and checks the window access within the rank's team.
inline std::size_t start_in_team(TestRanks& test_ranks, const TwoNodes& nodes) {
  auto comm = join(test_ranks);
  return see_each_other(test_ranks, comm, nodes.team_of(test_ranks.first()));
}

}  // namespace oriel::test
