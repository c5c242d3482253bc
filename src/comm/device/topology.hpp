// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "boot/link/vote_record.hpp"
#include "topo/choice/lsa_teams.hpp"
#include "topo/choice/rank_info.hpp"
#include "topo/choice/rank_paths.hpp"

namespace oriel::comm {

/// Description of all ranks of a communicator. It is a function of the messages that the ranks
/// exchange, and therefore the same on all ranks.
struct Topology {
  std::vector<topo::RankInfo> infos;  ///< by world rank
  topo::LsaTeams teams;
  topo::RankPaths paths;

  /// Returns the field by which all ranks check that they have the same topology.
  boot::AgreedField agreed_field() const;
  /// Returns teams and paths as one line for the log.
  std::string summary() const;
  /// Returns the paths by which `rank` reaches the other ranks of its node, as one line. The line
  /// is empty if it has none.
  std::string reach_of(int rank) const;
  /// Returns whether copy engines may execute collectives: several ranks form one LSA team, and all
  /// request it.
  bool may_use_copy_engines() const;
};

/// Derives the topology from the messages of all ranks, by world rank. An empty message stands for
/// a rank that has failed and reports it itself: the result is then meaningless, but no error. If a
/// message is malformed, the error names its rank. `most_gpus`: maximum size of a team of GPUs that
/// spans nodes.
Result<Topology> make_topology(const std::vector<Bytes>& messages, int most_gpus);

/// Adds the supplements of all ranks (RankPaths::wanted_of) to the topology; treats messages like
/// make_topology().
Result<Topology> complete_topology(Topology first, const std::vector<Bytes>& messages,
                                   int most_gpus);

}  // namespace oriel::comm
