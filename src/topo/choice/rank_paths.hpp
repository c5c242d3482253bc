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

/// The path between each two ranks of a communicator. If the two directions differ, the worse one
/// counts.
///
/// GPUs use the first of these that exists: one device; NVLink, including switches of a fabric
/// clique across hosts; PCIe peer access. If one GPU cannot map the other but their processes can
/// exchange descriptors of host memory, the path is host memory. Otherwise it is the network, even
/// on one node (two network namespaces, two users). If no source names the way between two GPUs of
/// one node, PCIe is assumed. Ranks on the host use host memory, with 0 hops inside a process, 1
/// inside a NUMA node, else 2. Host ranks that cannot exchange descriptors use the network.
///
/// The bandwidth class is the lower one of both sides or directions; it is unknown if one of them
/// is.
///
/// Depends only on what all ranks have sent each other, so every rank computes the same paths. Time
/// and memory grow with the number of ranks and of pairs on one node or in one clique. Immutable.
class RankPaths {
 public:
  RankPaths() = default;
  explicit RankPaths(std::span<const RankInfo> ranks);

  int size() const { return static_cast<int>(near_.size()); }
  /// Returns the path; between(a, b) equals between(b, a). O(log ranks of the node).
  PathFacts between(int a, int b) const;
  /// Returns a hash of the paths, to check that all ranks have the same ones.
  std::uint64_t hash() const;
  /// Returns what `rank` must send in addition. All ranks send their network's bandwidth if any two
  /// ranks have only the network between them. A rank that may learn more sends its reach of hidden
  /// GPUs if its reach of another rank is assumed. The result is equal on all ranks and part of
  /// hash().
  Wanted wanted_of(int rank) const {
    return {.hidden_gpus = asks_[static_cast<std::size_t>(rank)], .network = network_pairs_ > 0};
  }
  /// Returns whether any rank must send more.
  bool leave_questions() const;
  /// Returns text with the number of pairs by path, best first, and how many are assumed.
  std::string summary() const;

 private:
  struct Near {
    int peer;
    PathFacts path;
  };
  PathFacts far_between(std::size_t a, std::size_t b) const;

  /// By rank: the peers with higher numbers that are reached without the network, ascending.
  std::vector<std::vector<Near>> near_;
  std::vector<std::uint8_t> network_;  // bandwidth class of each rank's network
  std::size_t assumed_ = 0;            // pairs of ranks whose mappability is assumed
  std::vector<bool> asks_;             // by rank: its reach is assumed, and it may learn more
  std::size_t network_pairs_ = 0;      // pairs of ranks not in near_
};

/// Returns the path over which `from` loads and stores the memory of `to`, another rank.
PathFacts rank_path(const RankInfo& from, const RankInfo& to);

/// Adds the division into teams to `hash`.
std::uint64_t add_teams(std::uint64_t hash, const LsaTeams& teams);

/// Returns text such as "2 LSA teams: 0-3, 4-7".
std::string text_of(const LsaTeams& teams);

}  // namespace oriel::topo
