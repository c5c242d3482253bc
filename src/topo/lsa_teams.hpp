// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "topo/rank_info.hpp"

namespace oriel::topo {

/// The LSA teams of a communicator: every world rank is in exactly one. Teams may differ in size
/// and their ranks need not be neighbours.
struct LsaTeams {
  std::vector<std::vector<int>> members;  ///< world ranks of each team, ascending
  std::vector<int> team;                  ///< of each world rank
  std::vector<int> index;                 ///< of each world rank inside its team

  const std::vector<int>& members_of(int world_rank) const {
    return members[static_cast<std::size_t>(team[static_cast<std::size_t>(world_rank)])];
  }
};

/// Whether `from` can map the memory of `to`. Not symmetric, because device reach is not.
/// It takes one node and one kind of memory; one process, or a way for descriptors to travel (one
/// network namespace, one user); for GPUs also that the device is the same, is seen to be
/// reachable, or is not seen at all. The last: CUDA_VISIBLE_DEVICES often hides a rank's peers, and
/// the driver (since CUDA 10.1) maps the memory of hidden devices as it does that of visible ones;
/// where it cannot, the first registration says so on every rank.
bool can_map(const RankInfo& from, const RankInfo& to);

/// Forms the teams greedily in rank order: a rank joins the first team all of whose members it
/// reaches mutually, or begins the next one. A function of the list alone, so all ranks that hold
/// the same list get the same teams. O(ranks x ranks) comparisons at worst.
LsaTeams form_lsa_teams(std::span<const RankInfo> ranks);

}  // namespace oriel::topo
