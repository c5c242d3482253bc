// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/network/network_soft.hpp"
#include "comm/support/network_ranks.hpp"

namespace oriel::test {

/// Access to the internals of a communicator's network with software NICs.
class NetworkInside {
 public:
  explicit NetworkInside(comm::SoftNetwork& network) : network_(network) {}
  explicit NetworkInside(comm::Communicator& comm)
      : NetworkInside(dynamic_cast<comm::SoftNetwork&>(*comm.parts_.network)) {}

  net::NicSoft& nic(std::size_t at = 0) const { return network_.ports_.at(at).nic(); }
  /// Returns null if no peer is reached through libfabric.
  const net::WireFabric* fabric(std::size_t at = 0) const {
    return network_.ports_.at(at).fabric();
  }
  /// Returns null if only one path leads to this rank.
  const net::FailoverQueue* failover(int rank) const {
    for (const comm::PeerQueue& queue : network_.queues_) {
      if (queue.rank() == rank) return queue.failover();
    }
    return nullptr;
  }
  /// Returns the local interfaces that reach a rank, in the order of paths.
  std::vector<std::string> interfaces_to(int rank) const {
    std::vector<std::string> names;
    for (const comm::PathPair& path : network_.routes_.paths_to(rank)) {
      names.push_back(network_.routes_.interfaces()[path.own]);
    }
    return names;
  }
  /// Returns the address of the window that is marked by OwnWords; null if there is none.
  static const void* own_words_at(const comm::Communicator& comm) {
    return comm.parts_.network_windows->own_words_at_;
  }
  /// Returns the flight recorder of a communicator, which need not have a network.
  static const comm::FlightRecorder& flight(const comm::Communicator& comm) {
    return *comm.parts_.flight;
  }
  bool is_idle() const { return network_.is_idle(); }
  const auto& view() const { return network_.view(); }

 private:
  comm::SoftNetwork& network_;
};

/// Returns access to the internals of a communicator's network.
inline NetworkInside network_of(const Communicator& comm) {
  return NetworkInside(*must(comm::find_communicator(comm.handle())));
}
inline NetworkInside network_of(const Rank& rank) {
  return network_of(rank.comm);
}

}  // namespace oriel::test
