// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "comm/network/network_message.hpp"
#include "comm/network/rank_network.hpp"
#include "comm/paths/path_pairs.hpp"

namespace oriel::comm {

/// Routes from one rank to the others: their hosts, and the wires and paths by which they are
/// reached. Ranks of one machine, network namespace and user share memory; all others, and all
/// where ORIEL_WIRE says so, are reached by libfabric. One thread.
class RankRoutes {
 public:
  /// `peers`: the ranks that are reached by a NIC, ascending. `options` outlive this.
  RankRoutes(const NetworkOptions& options, std::vector<int> peers);

  /// Chooses the interfaces of this rank and returns where it is. failure() says what went wrong.
  NetworkPlace own_place();
  const std::optional<Error>& failure() const { return failure_; }
  /// Takes the places of all ranks; everything below is known from then on.
  void join(const std::vector<NetworkPlace>& places);

  bool by_fabric(int rank) const { return by_fabric_[static_cast<std::size_t>(rank)]; }
  const std::vector<PathPair>& paths_to(int rank) const {
    return paths_to_[static_cast<std::size_t>(rank)];
  }
  /// The number of a rank's host. Hosts are machines that share a network; where all ranks are
  /// reached by libfabric also what the user calls nodes.
  std::size_t host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& peers() const { return peers_; }
  /// Returns the number of this rank's NICs that have paths; the first one always counts.
  std::size_t nics() const;
  /// The ranks that a NIC reaches by libfabric.
  std::vector<int> fabric_peers(std::size_t nic) const;
  /// By NIC, the best one first. An empty name stands for what ORIEL_SOCKET_IFNAME asks for.
  const std::vector<std::string>& interfaces() const { return interfaces_; }

 private:
  Result<PathInterface> describe(const std::string& interface) const;
  void number_hosts(const std::vector<NetworkPlace>& places);

  const NetworkOptions& options_;
  const std::vector<int> peers_;
  std::vector<std::string> interfaces_{""};
  std::optional<Error> failure_;
  // By world rank.
  std::vector<bool> by_fabric_;
  std::vector<std::vector<PathPair>> paths_to_;
  std::vector<std::size_t> host_of_;
};

}  // namespace oriel::comm
