// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <span>
#include <vector>

#include "topo/choice/rank_info.hpp"

namespace oriel::topo {

/// The LSA teams of a communicator. Every world rank is in exactly one. Teams may differ in size,
/// and their ranks need not be consecutive.
struct LsaTeams {
  std::vector<std::vector<int>> members;  ///< world ranks of each team, ascending
  std::vector<int> team;                  ///< team of each world rank
  std::vector<int> index;                 ///< index of each world rank in its team

  const std::vector<int>& members_of(int world_rank) const {
    return members[static_cast<std::size_t>(team[static_cast<std::size_t>(world_rank)])];
  }
};

/// Returns whether two ranks can exchange file descriptors: they are of one process, or of one
/// node, network namespace and user. An equivalence relation.
bool descriptors_travel(const RankInfo& a, const RankInfo& b);

/// Returns whether two ranks can exchange fabric handles: both support them and their GPUs are of
/// one fabric clique. Works between hosts, unless the user has named a node (ORIEL_HOSTID) and
/// thereby separated them.
bool fabric_handles_travel(const RankInfo& a, const RankInfo& b);

/// Returns whether `from` can map the memory of `to`. Not symmetric, because device reach is not.
/// False if either rank has keeps_apart. Both ranks need one kind of memory and transferable
/// handles. GPUs also need reach. The device is the same, or the process of `from` knows that it is
/// reachable, or both are in one fabric clique. The knowledge comes from CUDA, or from NVML for
/// hidden devices. A device of the same node without any information counts as reachable.
/// Containers hide a rank's peers from NVML too, and the driver (since CUDA 10.1) maps hidden
/// devices like visible ones. If it cannot, the first registration fails on every rank. RankPaths
/// counts such pairs.
bool can_map(const RankInfo& from, const RankInfo& to);

/// Returns whether can_map() is true only by this assumption.
bool reach_is_assumed(const RankInfo& from, const RankInfo& to);

/// Forms the teams greedily in rank order. A rank joins the first team in which it and all members
/// reach each other, or starts a new one. A team that spans nodes has at most `most` members,
/// because fabric cliques can exceed what kernels support. This limit never divides the ranks of
/// one node: a node that does not fit entirely starts the next team. Depends only on its arguments,
/// so all ranks with the same list get the same teams. O(ranks x ranks) comparisons at worst.
LsaTeams form_lsa_teams(std::span<const RankInfo> ranks, int most = INT_MAX);

/// Returns a domain number for each of `members`; members that can exchange descriptors share one.
std::vector<int> descriptor_domains(std::span<const RankInfo> ranks, std::span<const int> members);

}  // namespace oriel::topo
