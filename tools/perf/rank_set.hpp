// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

#include "perf/channel.hpp"
#include "perf/options.hpp"
#include "perf/worker.hpp"

namespace oriel::perf {

/// The coordinator's connections to the ranks of one library. Each wait for answers has a
/// deadline. Its errors name each rank that failed, died or did not answer.
class RankSet {
 public:
  /// One rank. `pid` is -1 until known. `child`: `pid` is a child process that has not been reaped.
  /// If the ranks are threads of one process, only the first rank has `child` set.
  struct Peer {
    Channel channel;
    pid_t pid = -1;
    bool child = false;
    std::string host;
  };

  /// Forks one process per rank on this host, or one process for all ranks (Options::threads). Call
  /// before this process uses CUDA or starts threads.
  static Result<RankSet> start(const Options& options, const Contestant& contestant, int ranks);
  /// Takes connections of ranks started elsewhere, in rank order.
  RankSet(std::vector<Peer> peers, std::chrono::seconds timeout)
      : peers_(std::move(peers)), timeout_(timeout) {}

  RankSet(RankSet&& other) noexcept = default;
  RankSet& operator=(RankSet&&) = delete;
  ~RankSet();  ///< kills and reaps the children that have not finished

  int size() const { return static_cast<int>(peers_.size()); }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  /// Waits for each rank's first message; returns one message per rank.
  Result<std::vector<Json>> receive_hellos();
  /// Sends the request to all ranks and collects the answers. `doing` describes the step in error
  /// texts, such as "timing 64 MiB". After an error the set cannot be used any more.
  Result<std::vector<Json>> ask(const Json& request, const std::string& doing);
  /// Sends the request to one rank and returns its answer.
  Result<Json> ask_one(int rank, const Json& request, const std::string& doing);
  /// Sends "finish" to all ranks and waits for the child processes to exit.
  Status finish();

 private:
  Result<std::vector<Json>> collect(const std::vector<int>& ranks, const std::string& doing);
  std::string name(int rank) const;
  std::string describe_loss(int rank);
  void kill_children();

  std::vector<Peer> peers_;
  std::chrono::seconds timeout_;
};

/// Runs these ranks in a forked child: sets the environment of a measurement, then serves the
/// coordinator's requests. Never returns.
[[noreturn]] void become_workers(const Options& options, const Contestant& contestant,
                                 std::vector<WorkerRank> worker_ranks,
                                 const SharedBarrier& barrier) noexcept;

/// Counts the CUDA devices in a child process, because a process that has used CUDA cannot fork
/// ranks that use CUDA.
Result<int> count_devices_in_child();

}  // namespace oriel::perf
