// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oriel/device/queue.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "comm/keys/window_nic.hpp"
#include "comm/network/network_message.hpp"
#include "comm/network/rank_network.hpp"
#include "comm/network/rank_routes.hpp"
#include "comm/network/soft_ports.hpp"
#include "net/failover/failover_channel.hpp"
#include "net/failover/failover_queue.hpp"
#include "net/queue/key_aliases.hpp"
#include "net/soft/soft_send_queue.hpp"

namespace oriel::comm {

/// Parts that all queues of a rank share. They outlive the queues.
struct QueueParts {
  const NetworkOptions& options;
  const RankRoutes& routes;
  const SoftPorts& ports;
  std::uint32_t first_queue = 0;  ///< NetworkHello::first_queue
};
/// Returns NetworkHello::first_queue for a rank. It depends on rank and communicator, and no queue
/// number derived from it for `peers` is 0.
std::uint32_t choose_first_queue(const NetworkOptions& options, const std::vector<int>& peers);

/// Queue of a rank to a rank of another LSA team, executed by software NICs. It has one path, or
/// several, of which the next takes over when one fails (docs/failover.md). Move-only.
/// Thread safety: like net::SendQueue and net::FailoverQueue, once it is connected.
class PeerQueue {
 public:
  static Result<PeerQueue> create(const QueueParts& parts, int rank);

  /// Takes the addresses and queue numbers of each path to the peer, and adds the peer to fabric
  /// wires.
  Status take_ends(const NetworkHello& hello);
  /// `ring_wire`: the wire to the peer if it is not reached by libfabric.
  Status connect(std::uint32_t ring_wire);

  int rank() const { return rank_; }
  bool by_fabric() const { return parts_.routes.by_fabric(rank_); }
  bool has_left() const { return parts_.options.has_left(rank_); }
  const device::queue::QueueView& view() const { return queue().view(); }
  std::uint32_t number() const { return view().number; }
  /// Null if the peer is reached by one path.
  net::FailoverQueue* failover() const { return failover_.get(); }
  /// Return the NIC of path 0, and its index among the rank's NICs.
  net::NicSoft& nic() const { return parts_.ports.at(nic_index()).nic(); }
  std::size_t nic_index() const { return paths().front().own; }
  /// Returns the pairs of NICs that the paths join, the best one first.
  const std::vector<PathPair>& paths() const { return parts_.routes.paths_to(rank_); }

  /// Returns the time at which the latest answered request was sent.
  TimePoint answered() const;
  std::optional<device::queue::QueueError> first_error() const;
  /// Returns the errors of fabric wires to the peer, as the end of an error's text.
  std::string wire_errors() const;
  /// Returns whether all posted WQEs have been executed, or never will be because the peer has
  /// left.
  bool is_idle() const;
  void refuse_posts();
  /// Adds the paths on which the keys of windows have aliases.
  void add_aliases(WindowNics& nics);

 private:
  PeerQueue(const QueueParts& parts, int rank) : parts_(parts), rank_(rank) {}
  Status make_failover(const net::SendQueue::Options& queue);
  const net::SendQueue& queue() const {
    return failover_ != nullptr ? failover_->queue() : *single_;
  }

  const QueueParts& parts_;
  int rank_;
  std::unique_ptr<net::KeyAliases> aliases_;  // for single_, if its path does not join first NICs
  // Exactly one of single_ and failover_ is set; failover_ if there are several paths.
  std::optional<net::SendQueue> single_;
  std::unique_ptr<net::FailoverChannel> channel_;
  std::unique_ptr<net::FailoverQueue> failover_;
  std::vector<net::FailoverQueue::End> far_;  // the peer's end of each path
};

}  // namespace oriel::comm
