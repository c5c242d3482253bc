// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/network/network_soft.hpp"
#include "net/queue/syndrome.hpp"

/// The queues of a rank: how they are made and joined to those of its peers.
namespace oriel::comm {
namespace {

constexpr std::uint32_t kRingPieceBytes = 128 << 10;  // so that some fit into a ring
constexpr std::uint32_t kQueueDepth = 512;
constexpr std::uint32_t kFetchSlots = 16;
constexpr std::uint32_t kEpoch = 1;  // of queues with one path, which live as long as their network

}  // namespace

/// Elsewhere than those of other ranks and communicators.
std::uint32_t SoftNetwork::first_queue() const {
  const std::uint64_t mixed = options_.communicator * 0x9e3779b97f4a7c15u +
                              static_cast<std::uint64_t>(options_.rank + 1) * 0xd1b54a32d192ed03u;
  auto first = static_cast<std::uint32_t>(mixed >> 40);
  const auto is_none = [&](int rank) {
    return queue_number(first, rank) == 0 || queue_number(first, probe_of(rank)) == 0;
  };
  while (std::any_of(peers_of_rank_.begin(), peers_of_rank_.end(), is_none)) {
    first = (first + 1) & 0xffffff;
  }
  return first;
}

Status SoftNetwork::make_queues() {
  net::SendQueue::Options queue;
  queue.depth = kQueueDepth;
  queue.fetch_slots = kFetchSlots;
  queue.pages = nic_memory_.pages.get();
  // A kernel's fence between record and doorbell waits for a trip over PCIe.
  if (queue.pages != nullptr) queue.mode = net::DoorbellMode::alone;
  queue.answer_timeout = silence(*options_.settings) / (queue.repeats_most + 1);
  hello_.first_queue = first_queue();
  for (const int rank : peers_of_rank_) {
    Peer peer;
    peer.rank = rank;
    peer.by_fabric = by_fabric_[static_cast<std::size_t>(rank)];
    peer.paths = paths_to_[static_cast<std::size_t>(rank)];
    queue.peer = rank;
    queue.number = queue_number(hello_.first_queue, rank);
    queue.piece_bytes = peer.by_fabric ? kFabricPieceBytes : kRingPieceBytes;
    ORIEL_CHECK(make_queue(peer, queue));
    peers_.push_back(std::move(peer));
  }
  return {};
}

/// On the NIC of path 0. Entries name the keys of the first NIC, and of the peer's first one.
Status SoftNetwork::make_queue(Peer& peer, net::SendQueue::Options queue) {
  const PathPair& first = peer.paths.front();
  if (first.own != 0) {
    queue.namer = &nics_[0]->nic;
    queue.namer_domain = nics_[0]->domain;
  }
  if (peer.paths.size() > 1) return make_failover_queue(peer, queue);
  queue.domain = nics_[first.own]->domain;
  if (has_aliases(first)) peer.aliases = std::make_unique<net::KeyAliases>();
  queue.aliases = peer.aliases.get();
  ORIEL_TRY(peer.single, net::SendQueue::create(nics_[first.own]->nic, queue));
  return {};
}

/// Each rank's queue for this one, and the keys of its windows.
Status SoftNetwork::take_hellos(const std::vector<Bytes>& messages) {
  std::vector<KeysMessage> windows;
  std::vector<NetworkHello> hellos;
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    auto decoded = decode_hello(messages[rank]);
    if (!decoded.ok()) return std::move(decoded).error().with_origin(static_cast<int>(rank));
    others_failed_ = others_failed_ || decoded->windows.failed;
    windows.push_back(decoded->windows);
    hellos.push_back(std::move(decoded).value());
  }
  if (others_failed_) return {};  // the agreement tells why
  for (Peer& peer : peers_) {
    ORIEL_CHECK(take_ends(peer, hellos[static_cast<std::size_t>(peer.rank)]));
  }
  return options_.windows->learn(windows);
}

/// Where each path to a peer leads.
Status SoftNetwork::take_ends(Peer& peer, const NetworkHello& hello) {
  const std::uint32_t queue = queue_number(hello.first_queue, options_.rank);
  const std::uint32_t probe = queue_number(hello.first_queue, probe_of(options_.rank));
  if (queue == 0 || probe == 0) {
    return Error(ErrorCode::remote,
                 fmt::format("rank {} has no queue for rank {}", peer.rank, options_.rank))
        .with_origin(peer.rank);
  }
  peer.far.assign(peer.paths.size(), {{}, queue, probe});
  if (!peer.by_fabric) return {};
  for (std::size_t path = 0; path < peer.paths.size(); ++path) {
    const auto [own, far] = peer.paths[path];
    if (hello.fabrics.size() <= far) {
      return Error(ErrorCode::remote,
                   fmt::format("rank {} has told {} addresses, and path {} leads to number {}",
                               peer.rank, hello.fabrics.size(), path, far + 1))
          .with_origin(peer.rank);
    }
    std::string name = fmt::format("rank {}", peer.rank);
    if (peer.paths.size() > 1) name += " over " + interfaces_[own];
    std::vector<std::uint32_t> only = {peer.number()};
    // One with backups has a second queue on each path.
    if (peer.failover != nullptr) {
      only.push_back(queue_number(hello_.first_queue, probe_of(peer.rank)));
    }
    auto added = nics_[own]->fabric->add_peer(hello.fabrics[far], std::move(name), std::move(only));
    if (!added.ok()) {  // the peer's fault only if it is what it has told
      Error error = std::move(added).error();
      if (error.code() == ErrorCode::remote) return std::move(error).with_origin(peer.rank);
      return error;
    }
    peer.far[path].address = added.value();
  }
  return {};
}

Status SoftNetwork::connect_queues() {
  for (Peer& peer : peers_) {
    if (peer.failover != nullptr) {
      ORIEL_CHECK(peer.failover->connect(peer.far));
      continue;
    }
    if (!peer.by_fabric) peer.far[0].address = address_on_rings(peer.rank);
    const Nic& nic = *nics_[peer.paths.front().own];
    const std::uint32_t wire = peer.by_fabric ? nic.fabric_wire : ring_wire_;
    ORIEL_CHECK(peer.single->connect({wire, peer.far[0].address, peer.far[0].queue, kEpoch,
                                      static_cast<std::uint64_t>(peer.rank) + 1}));
  }
  return {};
}

}  // namespace oriel::comm
