// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/peer_queue.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/network/queue_failure.hpp"
#include "comm/network/rank_rings.hpp"

namespace oriel::comm {
namespace {

constexpr std::uint32_t kRingPieceBytes = 128 << 10;  // several pieces fit into a ring
constexpr std::uint32_t kQueueDepth = 512;
constexpr std::uint32_t kFetchSlots = 16;
constexpr std::uint32_t kEpoch = 1;  // for queues with one path, which live as long as their
                                     // network
// Time for some ticks of the peer's monitor, which names the rank at fault after its LeavingDoubt
// has ended.
constexpr Duration kSecondHandPause = LeavingDoubt::kMost + std::chrono::milliseconds(500);

/// Returns the argument of queue_number() for the queue that probes the paths to a rank.
int probe_of(const NetworkOptions& options, int rank) {
  return options.size() + rank;
}

}  // namespace

std::uint32_t choose_first_queue(const NetworkOptions& options, const std::vector<int>& peers) {
  const std::uint64_t mixed = options.communicator * 0x9e3779b97f4a7c15u +
                              static_cast<std::uint64_t>(options.rank() + 1) * 0xd1b54a32d192ed03u;
  auto first = static_cast<std::uint32_t>(mixed >> 40);
  const auto is_none = [&](int rank) {
    return queue_number(first, rank) == 0 || queue_number(first, probe_of(options, rank)) == 0;
  };
  while (std::any_of(peers.begin(), peers.end(), is_none)) first = (first + 1) & 0xffffff;
  return first;
}

/// Creates the queue on the NIC of path 0. WQEs carry the keys of the first NICs of both ranks.
Result<PeerQueue> PeerQueue::create(const QueueParts& parts, int rank) {
  PeerQueue made(parts, rank);
  net::SendQueue::Options queue;
  queue.depth = kQueueDepth;
  queue.fetch_slots = kFetchSlots;
  queue.pages = parts.ports.pages();
  // Avoids the doorbell record: a kernel's fence between record and doorbell waits for a PCIe round
  // trip.
  if (queue.pages != nullptr) queue.mode = net::DoorbellMode::alone;
  queue.answer_timeout =
      Network::peer_timeout(*parts.options.settings) / (queue.retransmissions_most + 1);
  queue.peer = rank;
  queue.number = queue_number(parts.first_queue, rank);
  queue.piece_bytes = made.by_fabric() ? SoftPort::kFabricPieceBytes : kRingPieceBytes;
  const PathPair& first = made.paths().front();
  if (first.own != 0) {
    queue.namer = &parts.ports.at(0).nic();
  }
  if (made.paths().size() > 1) {
    ORIEL_CHECK(made.make_failover(queue));
    return made;
  }
  if (has_aliases(first)) made.aliases_ = std::make_unique<net::KeyAliases>();
  queue.aliases = made.aliases_.get();
  ORIEL_TRY(made.single_, net::SendQueue::create(made.nic(), queue));
  return made;
}

/// Creates the queue with backup paths. Sets how long a path may be silent and how long both ends
/// may take to agree. A peer that answers on no path is given up as soon as without backups.
Status PeerQueue::make_failover(const net::SendQueue::Options& queue) {
  channel_ = std::make_unique<net::SessionFailoverChannel>(*parts_.options.session, rank_);
  Bytes stale;
  while (channel_->receive(stale)) {  // discards messages of a network whose creation failed
  }
  const Duration most = Network::peer_timeout(*parts_.options.settings);
  net::FailoverQueue::Options options;
  options.queue = queue;
  net::PathPolicy& health = options.health;
  health.fail_after = std::min(health.fail_after, most * 2 / 5);
  health.suspect_after = std::min(health.suspect_after, health.fail_after / 4);
  health.probe_every = std::min(health.probe_every, health.fail_after / 8);
  options.agreement.give_up_after = most - health.fail_after;
  options.second_hand_pause = kSecondHandPause;
  options.channel = channel_.get();
  options.first_has_aliases = has_aliases(paths().front());
  for (const PathPair& path : paths()) {
    SoftPort& port = parts_.ports.at(path.own);
    const std::uint32_t number = options.paths.empty() ? 0 : queue.number;
    options.paths.push_back({&port.nic(), port.fabric_wire(), parts_.routes.interfaces()[path.own],
                             number,
                             queue_number(parts_.first_queue, probe_of(parts_.options, rank_))});
  }
  ORIEL_TRY(failover_, net::FailoverQueue::create(std::move(options)));
  return {};
}

Status PeerQueue::take_ends(const NetworkHello& hello) {
  const int self = parts_.options.rank();
  const std::uint32_t queue = queue_number(hello.first_queue, self);
  const std::uint32_t probe = queue_number(hello.first_queue, probe_of(parts_.options, self));
  if (queue == 0 || probe == 0) {
    return Error(ErrorCode::remote, fmt::format("rank {} has no queue for rank {}", rank_, self))
        .with_origin(rank_);
  }
  far_.assign(paths().size(), {{}, queue, probe});
  if (!by_fabric()) {
    far_[0].address = RankRings::address_of(rank_);
    return {};
  }
  for (std::size_t path = 0; path < far_.size(); ++path) {
    const auto [own, far] = paths()[path];
    if (hello.fabrics.size() <= far) {
      return Error(ErrorCode::remote,
                   fmt::format("rank {} has sent {} addresses, and path {} leads to number {}",
                               rank_, hello.fabrics.size(), path, far + 1))
          .with_origin(rank_);
    }
    std::string name = fmt::format("rank {}", rank_);
    std::vector<std::uint32_t> only = {number()};
    if (failover_ != nullptr) {
      name += " over " + parts_.routes.interfaces()[own];
      only.push_back(queue_number(parts_.first_queue, probe_of(parts_.options, rank_)));
    }
    net::WireFabric& wire = *parts_.ports.at(own).fabric();
    auto added = wire.add_peer(hello.fabrics[far], std::move(name), std::move(only));
    if (!added.ok()) {  // the peer's fault only if its address is invalid
      Error error = std::move(added).error();
      if (error.code() == ErrorCode::remote) return std::move(error).with_origin(rank_);
      return error;
    }
    far_[path].address = added.value();
  }
  return {};
}

Status PeerQueue::connect(std::uint32_t ring_wire) {
  if (failover_ != nullptr) return failover_->connect(far_);
  const SoftPort& port = parts_.ports.at(nic_index());
  return single_->connect({by_fabric() ? port.fabric_wire() : ring_wire, far_[0].address,
                           far_[0].queue, kEpoch, static_cast<std::uint64_t>(rank_) + 1});
}

TimePoint PeerQueue::answered() const {
  return failover_ != nullptr ? failover_->answered() : single_->answered();
}

std::optional<device::queue::QueueError> PeerQueue::first_error() const {
  const std::uint64_t word =
      std::atomic_ref<std::uint64_t>(*queue().memory().first_error).load(std::memory_order_acquire);
  if (word == 0) return std::nullopt;
  return device::queue::decode_error(word);
}

std::string PeerQueue::wire_errors() const {
  std::string text;
  for (std::size_t path = 0; by_fabric() && path < paths().size(); ++path) {
    const net::WireFabric& wire = *parts_.ports.at(paths()[path].own).fabric();
    Status met = wire.peer_status(far_[path].address);
    if (met.ok()) met = wire.status();
    if (!met.ok()) text += "; its wire says: " + met.error().to_string();
  }
  return text;
}

/// Checks the queue's work if there are backups, on whichever path. The NICs also have probes,
/// which wait as long as a path is dead.
bool PeerQueue::is_idle() const {
  if (has_left()) return true;
  return failover_ != nullptr ? !failover_->pace().has_work : nic().is_idle(number());
}

void PeerQueue::refuse_posts() {
  net::SendQueue& refusing = failover_ != nullptr ? failover_->queue() : *single_;
  const Status refused = refusing.refuse_posts();
  if (!refused.ok()) Log(parts_.options.rank()).info("{}", refused.error().to_string());
}

void PeerQueue::add_aliases(WindowNics& nics) {
  for (std::size_t path = 0; path < paths().size(); ++path) {
    const PathPair& pair = paths()[path];
    if (!has_aliases(pair)) continue;
    nics.paths.resize(static_cast<std::size_t>(parts_.options.size()));
    nics.paths[static_cast<std::size_t>(rank_)].push_back(
        {failover_ != nullptr ? &failover_->aliases(path) : aliases_.get(), pair.own, pair.far});
  }
}

}  // namespace oriel::comm
