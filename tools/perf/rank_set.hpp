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

/// The ranks of one library, as the coordinator sees them. Every request goes to all of
/// them and every wait has a deadline; the first rank that fails, dies or stays silent is named.
class RankSet {
 public:
  /// One rank. `pid` is -1 until known. `child`: the pid is a child of this process, and its end is
  /// asked for by this rank, the first of those that are its threads.
  struct Peer {
    Channel channel;
    pid_t pid = -1;
    bool child = false;
    std::string host;
  };

  /// Forks the ranks on this host, or one process of all of them (Options::threads). Call before
  /// anything in this process has touched CUDA or started threads.
  static Result<RankSet> start(const Options& options, const Contestant& contestant, int ranks);
  /// Of ranks that have connected from elsewhere, in rank order.
  RankSet(std::vector<Peer> peers, std::chrono::seconds timeout)
      : peers_(std::move(peers)), timeout_(timeout) {}

  RankSet(RankSet&& other) noexcept = default;
  RankSet& operator=(RankSet&&) = delete;
  ~RankSet();  ///< kills what has not finished

  int size() const { return static_cast<int>(peers_.size()); }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }

  /// Waits for the message that every rank begins with; one answer per rank.
  Result<std::vector<Json>> greet();
  /// Sends the request to all ranks and collects the answers. `doing` says what is being done, as
  /// in "timing 64 MiB". After an error the set is of no further use.
  Result<std::vector<Json>> ask(const Json& request, const std::string& doing);
  /// The same of one rank.
  Result<Json> ask_one(int rank, const Json& request, const std::string& doing);
  /// Tells all ranks to end, and waits until they have.
  Status finish();

 private:
  Result<std::vector<Json>> collect(const std::vector<int>& ranks, const std::string& doing);
  std::string name(int rank) const;
  std::string describe_loss(int rank);
  void kill_children();

  std::vector<Peer> peers_;
  std::chrono::seconds timeout_;
};

/// In a forked child: sets the environment that every rank of a measurement gets, then works for
/// the coordinator as these ranks. Never returns.
[[noreturn]] void become_workers(const Options& options, const Contestant& contestant,
                                 std::vector<Seat> seats, const SharedBarrier& barrier) noexcept;

/// The number of CUDA devices, found out by a child, because a process that has used CUDA cannot
/// fork ranks that use it.
Result<int> count_devices_in_child();

}  // namespace oriel::perf
