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

/// Routes from one rank to the others: their hosts, and the wires and paths to them. Ranks of one
/// machine, network namespace and user share memory. All others are reached by libfabric, and all
/// ranks if ORIEL_WIRE requires it. One thread.
class RankRoutes {
 public:
  /// `peers`: the ranks that are reached by a NIC, ascending. `options` outlives this.
  RankRoutes(const NetworkOptions& options, std::vector<int> peers);

  /// Chooses the interfaces of this rank and returns its location. failure() returns the error, if
  /// any.
  NetworkPlace own_place();
  const std::optional<Error>& failure() const { return failure_; }
  /// Takes the locations of all ranks. The functions below need it.
  void join(const std::vector<NetworkPlace>& places);

  bool by_fabric(int rank) const { return by_fabric_[static_cast<std::size_t>(rank)]; }
  const std::vector<PathPair>& paths_to(int rank) const {
    return paths_to_[static_cast<std::size_t>(rank)];
  }
  /// Returns the number of a rank's host. A host is a machine with one network namespace. If
  /// ORIEL_WIRE requires libfabric for all ranks, a host is also one node as the user defines it.
  std::size_t host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& peers() const { return peers_; }
  /// Returns the number of this rank's NICs up to the last that has a path, at least 1 for the
  /// first NIC. NICs before the last may have no path.
  std::size_t nics() const;
  /// Returns the ranks that a NIC reaches by libfabric.
  std::vector<int> fabric_peers(std::size_t nic) const;
  /// Returns the interfaces by NIC, the best first. An empty name stands for the choice of
  /// ORIEL_SOCKET_IFNAME.
  const std::vector<std::string>& interfaces() const { return interfaces_; }

 private:
  Result<PathInterface> describe(const std::string& interface) const;
  void number_hosts(const std::vector<NetworkPlace>& places);

  const NetworkOptions& options_;
  const std::vector<int> peers_;
  std::vector<std::string> interfaces_{""};
  std::optional<Error> failure_;
  // Indexed by world rank.
  std::vector<bool> by_fabric_;
  std::vector<std::vector<PathPair>> paths_to_;
  std::vector<std::size_t> host_of_;
};

}  // namespace oriel::comm
