// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "net/soft/nic_context.hpp"
#include "net/wire/queue_setup.hpp"

namespace oriel::net {

/// One half of a queue: its setup, its NIC and its peer.
struct QueueEnd {
  const QueueSetup setup;
  const std::uint32_t number;
  NicContext& nic;
  QueuePeer peer{};

  Wire& wire() const { return *nic.wires[peer.wire]; }
  WirePeer wire_peer() const { return {peer.wire, peer.address.value}; }
};

/// State that the parts of a queue's sending half share.
struct SendEnd : QueueEnd {
  /// Returns the queue's number in the ring and in completions.
  std::uint32_t name() const { return setup.named != 0 ? setup.named : number; }
  MemoryKeys::Found find_local(const WorkRequest& work, bool write) const {
    return nic.keys.find_local(work.lkey, work.local_address, work.bytes, write);
  }
  /// Finds a mapping of the peer's memory that the WQE names.
  MemoryKeys::Found find_mapped(const WorkRequest& work) const {
    return nic.peers.find(peer.process, work.rkey, work.remote_address, work.bytes);
  }
};

/// The receiving half of a queue, and the checks of its peer's requests.
struct ReceiveEnd : QueueEnd {
  bool is_from_peer(const WireRequest& request) const {
    return request.from == peer.address && request.from_queue == peer.queue &&
           request.epoch == peer.epoch;
  }
  /// Finds the local memory that the request names.
  MemoryKeys::Found find(const WireRequest& request) const;
  /// Finds the peer's memory from which a direct write is copied.
  MemoryKeys::Found find_source(const WireRequest& request) const {
    return nic.peers.find(peer.process, request.source_key, request.source_address,
                          request.piece_bytes);
  }
  /// Returns the syndrome with which to refuse the request, or `none`.
  Syndrome check(const WireRequest& request) const;
  /// Returns whether this side can get the bytes of a write in the way that the request says.
  bool can_reach(const WireRequest& request) const;
  WireResponse response_to(const WireRequest& request) const;
};

}  // namespace oriel::net
