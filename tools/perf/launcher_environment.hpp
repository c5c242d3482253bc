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

/// Rank and rendezvous of this process, from the environment variables of a launcher (torchrun,
/// oriel-run, mpirun of Open MPI or MPICH, srun).
struct LauncherEnvironment {
  std::string launcher;  ///< for messages: the rank variable that was found
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
  int local_ranks = 1;
  std::string master_address;  ///< empty if the launcher names none
  int master_port = 0;
  bool port_in_use = false;  ///< the launcher itself listens on master_port
  std::int64_t daemon = 0;   ///< parent process id; assumed equal for all ranks of a host
};

/// Reads the launcher's variables; nothing if no known launcher set them. Fails if a variable that
/// it reads is no number, or if rank and number of ranks do not fit together. Ignores the master's
/// address if MASTER_PORT is not from 1 to 65535.
Result<std::optional<LauncherEnvironment>> find_launcher();

/// Rank 0's side of the rendezvous of a launcher's ranks. Listens, then accepts one connection per
/// rank and set.
class Meeting {
 public:
  static Result<Meeting> open(const LauncherEnvironment& environment,
                              const std::string& rendezvous);
  ~Meeting();
  Meeting(Meeting&&) noexcept = default;
  Meeting& operator=(Meeting&&) = delete;

  /// Waits for `ranks` connections of each of `sets` sets. Connections of other runs are dropped.
  Result<std::vector<std::vector<RankSet::Peer>>> gather(int sets, int ranks, Deadline deadline);

 private:
  Meeting() = default;
  OwnedFd socket_;
  std::string token_;
  std::string place_;  // address or file, for messages
  std::string file_;   // removed by the destructor; empty without a file
};

/// Connects rank `environment.rank` of set `set` to rank 0's Meeting. Retries until the deadline.
Result<Channel> join_meeting(const LauncherEnvironment& environment, const std::string& rendezvous,
                             int set, Deadline deadline);

}  // namespace oriel::perf
