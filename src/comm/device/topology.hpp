// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "boot/link/verdict.hpp"
#include "topo/choice/lsa_teams.hpp"
#include "topo/choice/rank_info.hpp"
#include "topo/choice/rank_paths.hpp"

namespace oriel::comm {

/// What every rank of a communicator knows of all: a function of what they have told each other,
/// and therefore the same on all of them.
struct Topology {
  std::vector<topo::RankInfo> infos;  ///< by world rank
  topo::LsaTeams teams;
  topo::RankPaths paths;

  /// For the agreement that all ranks do have the same.
  boot::AgreedField agreed_field() const;
  /// Teams and paths in one line, for the log.
  std::string summary() const;
  /// By which paths `rank` reaches the other ranks of its node, in one line; empty if it has none.
  std::string reach_of(int rank) const;
  /// Returns whether copy engines may carry out collectives: all ranks ask for it, and are GPUs of
  /// one LSA team.
  bool may_use_copy_engines() const;
};

/// What follows from the messages of all ranks, by world rank. An empty message stands for a rank
/// that has failed and says so itself: the result is then of no meaning, but no error. The error
/// names the rank whose message is malformed. `most_gpus`: a team of GPUs that spans nodes is full
/// with so many.
Result<Topology> make_topology(const std::vector<Bytes>& messages, int most_gpus);

/// The same with what the ranks have told besides (RankPaths::wanted_of), in the same manner.
Result<Topology> complete_topology(Topology first, const std::vector<Bytes>& messages,
                                   int most_gpus);

}  // namespace oriel::comm
