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

/// Parts that all queues of a rank share; outlives them.
struct QueueParts {
  const NetworkOptions& options;
  const RankRoutes& routes;
  const SoftPorts& ports;
  std::uint32_t first_queue = 0;  ///< NetworkHello::first_queue
};
/// Returns NetworkHello::first_queue for a rank: elsewhere than those of other ranks and
/// communicators, and so that no number which follows from it is 0.
std::uint32_t choose_first_queue(const NetworkOptions& options, const std::vector<int>& peers);

/// The queue of a rank to one of another LSA team, executed by software NICs: by one path, or by
/// several of which the next takes over when one fails (docs/failover.md). Move-only.
/// Thread safety: as net::SendQueue and net::FailoverQueue once it is connected.
class PeerQueue {
 public:
  static Result<PeerQueue> create(const QueueParts& parts, int rank);

  /// Notes where each path to the peer leads, and has fabric wires know the peer.
  Status take_ends(const NetworkHello& hello);
  /// `ring_wire`: by which the peer is reached unless that is libfabric.
  Status connect(std::uint32_t ring_wire);

  int rank() const { return rank_; }
  bool by_fabric() const { return parts_.routes.by_fabric(rank_); }
  bool has_left() const { return parts_.options.has_left(rank_); }
  const device::queue::QueueView& view() const { return queue().view(); }
  std::uint32_t number() const { return view().number; }
  /// Null where the peer is reached by one path.
  net::FailoverQueue* failover() const { return failover_.get(); }
  /// The NIC of path 0, and its place among the rank's.
  net::NicSoft& nic() const { return parts_.ports.at(nic_index()).nic(); }
  std::size_t nic_index() const { return paths().front().own; }
  /// Returns the pairs of NICs that the paths join, the best one first.
  const std::vector<PathPair>& paths() const { return parts_.routes.paths_to(rank_); }

  /// When the latest of the requests that the peer has answered was sent.
  TimePoint answered() const;
  std::optional<device::queue::QueueError> first_error() const;
  /// Returns what fabric wires to the peer have met, as the end of an error's text.
  std::string wires_say() const;
  /// Returns whether all posted entries have been executed, or never will be because the peer has
  /// left.
  bool is_idle() const;
  void refuse_posts();
  /// Adds the paths on which windows' keys have other names than in entries.
  void add_aliases(WindowNics& nics);

 private:
  PeerQueue(const QueueParts& parts, int rank) : parts_(parts), rank_(rank) {}
  Status make_failover(const net::SendQueue::Options& queue);
  const net::SendQueue& queue() const {
    return failover_ != nullptr ? failover_->queue() : *single_;
  }

  const QueueParts& parts_;
  int rank_;
  std::unique_ptr<net::KeyAliases> aliases_;  // of single_, if one of the NICs is not a first one
  // One of these two, the second where there are several paths.
  std::optional<net::SendQueue> single_;
  std::unique_ptr<net::FailoverChannel> channel_;
  std::unique_ptr<net::FailoverQueue> failover_;
  std::vector<net::FailoverQueue::End> far_;  // of each path
};

}  // namespace oriel::comm
