// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "perf/channel.hpp"
#include "perf/options.hpp"
#include "perf/rank_set.hpp"

namespace oriel::perf {

/// What a launcher (torchrun, oriel-run, mpirun of Open MPI or MPICH, srun) told this process.
struct LauncherEnvironment {
  std::string launcher;  ///< for messages: the variable that gave it away
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
  int local_ranks = 1;
  std::string master_address;  ///< empty if the launcher names none
  int master_port = 0;
  bool port_in_use = false;  ///< the launcher itself listens on the port
  std::int64_t daemon = 0;   ///< process that started this one, the same for all of a host's ranks
};

/// What the environment says, or nothing if no launcher is known to it. A variable that is there
/// but makes no sense is an error.
Result<std::optional<LauncherEnvironment>> find_launcher();

/// Rank 0's side of the meeting of a launcher's ranks: listens, then gathers one connection per
/// rank and set.
class Meeting {
 public:
  static Result<Meeting> open(const LauncherEnvironment& environment,
                              const std::string& rendezvous);
  ~Meeting();
  Meeting(Meeting&&) noexcept = default;
  Meeting& operator=(Meeting&&) = delete;

  /// Waits for `ranks` connections of each of `sets` sets.
  Result<std::vector<std::vector<RankSet::Peer>>> gather(int sets, int ranks, Deadline deadline);

 private:
  Meeting() = default;
  OwnedFd socket_;
  std::string token_;
  std::string place_;  // where it is, in words
  std::string file_;   // to be removed again
};

/// The other side: connects rank `environment.rank` of set `set`, trying until the deadline.
Result<Channel> join_meeting(const LauncherEnvironment& environment, const std::string& rendezvous,
                             int set, Deadline deadline);

}  // namespace oriel::perf
