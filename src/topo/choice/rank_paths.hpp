// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "topo/choice/lsa_teams.hpp"
#include "topo/choice/path_facts.hpp"
#include "topo/choice/rank_info.hpp"

namespace oriel::topo {

/// The path between each two ranks of a communicator, whichever way data goes: where the two
/// directions differ, the worse of both.
///
/// GPUs: one device; NVLink, also through the switches of a fabric clique of several hosts; PCIe
/// peer access; host memory, where one cannot map the other but descriptors of host memory travel
/// between their processes; else the network, also on one node (two network namespaces, two users).
/// Where nothing says by what way two GPUs of one node reach each other, PCIe is assumed.
/// Ranks on the host: host memory, with 0 hops inside a process, 1 inside a NUMA node, else 2;
/// where descriptors do not travel, the network.
///
/// Classes of bandwidth are the lower one of both sides, and not known where one side's is not.
///
/// A function of what all ranks have told each other, so every rank computes the same. Takes time
/// and memory by the number of ranks and of pairs that are on one node or in one clique. Immutable.
class RankPaths {
 public:
  RankPaths() = default;
  explicit RankPaths(std::span<const RankInfo> ranks);

  int size() const { return static_cast<int>(near_.size()); }
  /// between(a, b) is between(b, a). O(log ranks of the node).
  PathFacts between(int a, int b) const;
  /// What tells these paths from others, for a check that all ranks have the same.
  std::uint64_t hash() const;
  /// What `rank` shall tell besides, because what the ranks have told leaves it open: how fast the
  /// network is if any two ranks have no other path, and, of a rank that may learn more, whether it
  /// reaches other ranks' GPUs where that is assumed. The same everywhere, as part of hash().
  Wanted wanted_of(int rank) const {
    return {.hidden_gpus = asks_[static_cast<std::size_t>(rank)], .network = network_pairs_ > 0};
  }
  /// Whether any rank shall tell more.
  bool leave_questions() const;
  /// How many pairs have which path, the best first, and how many of them are assumed.
  std::string summary() const;

 private:
  struct Near {
    int peer;
    PathFacts path;
  };
  PathFacts far_between(std::size_t a, std::size_t b) const;

  /// By rank: the peers with higher numbers to which there is a path without the network, by
  /// number.
  std::vector<std::vector<Near>> near_;
  std::vector<std::uint8_t> network_;  // the class of each rank's network
  std::size_t assumed_ = 0;        // pairs of ranks that no source says can map each other's memory
  std::vector<bool> asks_;         // whether the rank's reach is assumed, and it may learn more
  std::size_t network_pairs_ = 0;  // pairs that are not in near_
};

/// The path over which `from` loads and stores the memory of `to`, which is another rank.
PathFacts rank_path(const RankInfo& from, const RankInfo& to);

/// What tells a division into teams from others, on top of `hash`.
std::uint64_t add_teams(std::uint64_t hash, const LsaTeams& teams);

/// Such as "2 LSA teams: 0-3, 4-7".
std::string text_of(const LsaTeams& teams);

}  // namespace oriel::topo
