// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "oriel/device/doorbell.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/fd.hpp"
#include "base/task.hpp"
#include "comm/keys/direct_windows.hpp"
#include "comm/network/rank_network.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/wire/wire_ring.hpp"
#include "window/exchange/fd_exchange.hpp"

namespace oriel::comm {

/// Rings in shared memory between a rank and the ranks with which it shares memory. Also holds the
/// doorbell that wakes its NIC's thread, and the exchange of descriptors for the rings. One thread,
/// except failure().
class RankRings {
 public:
  /// A peer that is reached by rings.
  struct Peer {
    int rank = -1;
    std::uint32_t queue = 0;  ///< number of this rank's queue to the peer
  };

  /// `options` outlives this.
  explicit RankRings(const NetworkOptions& options) : options_(options) {}
  Status make_doorbell();
  /// Listens for the descriptors of these peers. Local. Returns an empty name if there are no
  /// peers.
  Result<window::FdSocketName> listen(std::vector<Peer> peers);
  bool is_listening() const { return exchange_ != nullptr; }
  Task<Status> dial(EventLoop& loop, std::vector<window::FdSocketName> names, Deadline deadline);
  /// Exchanges descriptors with the peers and adds the wire that joins them to the NIC.
  Task<Status> join(EventLoop& loop, net::NicSoft& nic, Deadline deadline);

  static net::WireAddress address_of(int rank) { return {static_cast<std::uint64_t>(rank) + 1}; }
  /// Returns the wire's number at the NIC.
  std::uint32_t wire() const { return wire_number_; }
  device::Doorbell& doorbell() const { return doorbell_->doorbell(); }
  /// Any thread.
  std::optional<Error> failure() const;

  /// Returns the path for mapping windows of these peers. It includes only ranks that can map each
  /// other's memory, so not GPUs that do not reach each other.
  DirectPath direct_path() const;
  void end_exchange() { exchange_.reset(); }

 private:
  Status make_rings(std::vector<std::vector<OwnedFd>>& outgoing,
                    std::vector<net::RingReader>& readers);
  Status take_rings(std::vector<std::vector<OwnedFd>> arrived, std::vector<net::RingReader> readers,
                    net::NicSoft& nic);

  const NetworkOptions& options_;
  std::vector<Peer> peers_;
  net::RingWire* wire_ = nullptr;  // owned by the NIC; null if no peer is reached by rings
  std::uint32_t wire_number_ = 0;
  std::optional<net::RingDoorbell> doorbell_;
  OwnedFd doorbell_fd_;                           // kept until the peers have received it
  std::unique_ptr<window::FdExchange> exchange_;  // between ranks joined by rings
};

}  // namespace oriel::comm
