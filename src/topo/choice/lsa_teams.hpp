// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>
#include <span>
#include <vector>

#include "topo/choice/rank_info.hpp"

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

/// Whether file descriptors travel between the processes of two ranks: one process, or one node,
/// network namespace and user. An equivalence.
bool descriptors_travel(const RankInfo& a, const RankInfo& b);

/// Whether fabric handles do: both have them, for GPUs of one fabric clique. Also between hosts,
/// but not where the user has named the nodes (ORIEL_HOSTID) and thereby separated them.
bool fabric_handles_travel(const RankInfo& a, const RankInfo& b);

/// Whether `from` can map the memory of `to`: not where either keeps apart. Not symmetric, because
/// device reach is not. It takes one kind of memory and handles that travel; for GPUs also reach:
/// the device is the same, or the process of `from` knows (from CUDA, or from NVML of a device
/// hidden from it) that it is reachable, or both are in one fabric clique. Where no source says
/// anything about a device of the same node it counts as reachable: containers hide a rank's peers
/// from NVML too, and the driver (since CUDA 10.1) maps the memory of hidden devices as it does
/// that of visible ones; where it cannot, the first registration says so on every rank. RankPaths
/// counts such pairs.
bool can_map(const RankInfo& from, const RankInfo& to);

/// Whether can_map() rests on that assumption alone.
bool reach_is_assumed(const RankInfo& from, const RankInfo& to);

/// Forms the teams greedily in rank order: a rank joins the first team all of whose members it
/// reaches mutually, or begins the next one. Fabric cliques can be larger than what kernels can do
/// with, so a team that spans nodes has `most` members at most. The ranks of one node are never
/// divided for that reason: a node that does not fit whole begins the next team. A function of its
/// arguments alone, so all ranks that hold the same list get the same teams. O(ranks x ranks)
/// comparisons at worst.
LsaTeams form_lsa_teams(std::span<const RankInfo> ranks, int most = INT_MAX);

/// For each of `members` a number that those share between which descriptors travel.
std::vector<int> descriptor_domains(std::span<const RankInfo> ranks, std::span<const int> members);

}  // namespace oriel::topo
