// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "api/api_ranks.hpp"

/// Communicators whose ranks are in two LSA teams, as ORIEL_HOSTID divides them.
namespace oriel::test {

/// What a rank sets to count as one of node `node`.
inline Variables of_node(int node) {
  return {{"ORIEL_HOSTID", "node" + std::to_string(node)}};
}

/// The first `first` of `ranks` ranks count as one node, the others as another one.
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

/// Registers a window through which the ranks of the team, and no others, see each other. Returns
/// the size of a slot in bytes.
inline std::size_t see_each_other(Players& players, Communicator& comm,
                                  const std::vector<int>& team) {
  require(comm.lsa_team() == team, "the team");
  const auto memory = must(comm.allocate(4096));
  const auto window = must(comm.register_window(memory));
  const device::WindowView view = window.view();
  require(view.lsa_size == static_cast<int>(team.size()), "the size of the team");
  const auto value_of = [&](int index) {
    return static_cast<std::atomic<int>*>(view.lsa_peer(index, 0, sizeof(int)));
  };
  value_of(view.lsa_rank)->store(100 + players.first());
  players.barrier();
  for (std::size_t i = 0; i < team.size(); ++i) {
    require(value_of(static_cast<int>(i))->load() == 100 + team[i], "what a peer has stored");
  }
  players.barrier();
  return static_cast<std::size_t>(view.stride_4g) << 32;
}

/// Joins, and sees the others of its team.
inline std::size_t start_in_team(Players& players, const TwoNodes& nodes) {
  auto comm = join(players);
  return see_each_other(players, comm, nodes.team_of(players.first()));
}

}  // namespace oriel::test
