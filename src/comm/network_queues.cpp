// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/network.hpp"
#include "net/syndrome.hpp"

/// The queues of a rank: how they are made and joined to those of its peers, and what has gone
/// wrong in them.
namespace oriel::comm {
namespace {

constexpr std::uint32_t kRingPieceBytes = 128 << 10;  // so that some fit into a ring
constexpr std::uint32_t kQueueDepth = 512;
constexpr std::uint32_t kFetchSlots = 16;
constexpr std::uint32_t kEpoch = 1;  // of queues with one path, which live as long as their network
constexpr Duration kProbeInterval = std::chrono::seconds(1);

const char* describe(std::uint32_t syndrome) {
  switch (static_cast<net::Syndrome>(syndrome)) {
    case net::Syndrome::local_length:
      return "an entry of a length that cannot be";
    case net::Syndrome::local_operation:
      return "an entry that makes no sense";
    case net::Syndrome::local_protection:
      return "the key or the range of this rank's own memory was refused";
    case net::Syndrome::flushed:
      return "the queue had failed before";
    case net::Syndrome::remote_invalid:
      return "the peer cannot do what was asked";
    case net::Syndrome::remote_access:
      return "the peer refused the key or the range";
    case net::Syndrome::remote_operation:
      return "the peer failed to do it";
    case net::Syndrome::transport_retry:
      return "the peer did not answer";
    case net::Syndrome::receiver_retry:
      return "the peer had no room";
    default:
      return "unknown";
  }
}

/// Whether the fault is the peer's.
bool is_of_peer(std::uint32_t syndrome) {
  const auto what = static_cast<net::Syndrome>(syndrome);
  return what == net::Syndrome::transport_retry || what == net::Syndrome::remote_operation ||
         what == net::Syndrome::receiver_retry;
}

}  // namespace

Duration Network::silence(const Settings& settings) {
  const net::QueueSetup usual;
  const Duration most = usual.answer_timeout * (usual.repeats_most + 1);
  return settings.collective_timeout ? std::min(most, *settings.collective_timeout / 3) : most;
}

/// Elsewhere than those of other ranks and communicators.
std::uint32_t Network::first_queue() const {
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

Status Network::make_queues() {
  net::SendQueue::Options queue;
  queue.domain = nics_[0]->domain;
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
    if (peer.paths > 1) {
      ORIEL_CHECK(make_failover_queue(peer, queue));
    } else {
      ORIEL_TRY(peer.single, net::SendQueue::create(nics_[0]->nic, queue));
    }
    peers_.push_back(std::move(peer));
  }
  return {};
}

/// Each rank's queue for this one, and the keys of its windows.
Status Network::take_hellos(const std::vector<Bytes>& messages) {
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
Status Network::take_ends(Peer& peer, const NetworkHello& hello) {
  const std::uint32_t queue = queue_number(hello.first_queue, options_.rank);
  const std::uint32_t probe = queue_number(hello.first_queue, probe_of(options_.rank));
  if (queue == 0 || probe == 0) {
    return Error(ErrorCode::remote,
                 fmt::format("rank {} has no queue for rank {}", peer.rank, options_.rank))
        .with_origin(peer.rank);
  }
  peer.far.assign(peer.paths, {{}, queue, probe});
  if (!peer.by_fabric) return {};
  if (hello.fabrics.size() < peer.paths) {
    return Error(ErrorCode::remote, fmt::format("rank {} has told {} addresses for {} paths",
                                                peer.rank, hello.fabrics.size(), peer.paths))
        .with_origin(peer.rank);
  }
  for (std::size_t path = 0; path < peer.paths; ++path) {
    std::string name = fmt::format("rank {}", peer.rank);
    if (peer.paths > 1) name += " over " + interfaces_[path];
    std::vector<std::uint32_t> only = {peer.number()};
    // One with backups has a second queue on each path.
    if (peer.paths > 1) only.push_back(queue_number(hello_.first_queue, probe_of(peer.rank)));
    auto added =
        nics_[path]->fabric->add_peer(hello.fabrics[path], std::move(name), std::move(only));
    if (!added.ok()) {  // the peer's fault only if it is what it has told
      Error error = std::move(added).error();
      if (error.code() == ErrorCode::remote) return std::move(error).with_origin(peer.rank);
      return error;
    }
    peer.far[path].address = added.value();
  }
  return {};
}

Status Network::connect_queues() {
  for (Peer& peer : peers_) {
    if (peer.failover != nullptr) {
      ORIEL_CHECK(peer.failover->connect(peer.far));
      continue;
    }
    if (!peer.by_fabric) peer.far[0].address = address_on_rings(peer.rank);
    const std::uint32_t wire = peer.by_fabric ? nics_[0]->fabric_wire : ring_wire_;
    ORIEL_CHECK(peer.single->connect({wire, peer.far[0].address, peer.far[0].queue, kEpoch,
                                      static_cast<std::uint64_t>(peer.rank) + 1}));
  }
  return {};
}

bool Network::has_left(const Peer& peer) const {
  return options_.has_left && options_.has_left(peer.rank);
}

bool Network::is_of_probe(const Peer& peer, const device::queue::QueueError& error) const {
  if (static_cast<net::Syndrome>(error.syndrome) != net::Syndrome::transport_retry) return false;
  if (peer.failover == nullptr) return error.opcode == net::kProbeOpcode;
  const std::lock_guard lock(probe_mutex_);
  return peer.probe == error.index;
}

std::string Network::wires_say(const Peer& peer) const {
  std::string said;
  for (std::size_t path = 0; peer.by_fabric && path < peer.paths; ++path) {
    const net::WireFabric& fabric = *nics_[path]->fabric;
    Status wire = fabric.peer_status(peer.far[path].address);
    if (wire.ok()) wire = fabric.status();
    if (!wire.ok()) said += "; its wire says: " + wire.error().to_string();
  }
  return said;
}

std::optional<Error> Network::queue_failure(const Peer& peer) const {
  const net::QueueMemory& memory =
      peer.failover != nullptr ? peer.failover->queue().memory() : peer.single->memory();
  const std::uint64_t word =
      std::atomic_ref<std::uint64_t>(*memory.first_error).load(std::memory_order_acquire);
  if (word == 0) return std::nullopt;
  const auto error = device::queue::decode_error(word);
  const bool of_probe = is_of_probe(peer, error);
  // A peer that has left answers no more; what matters is whether it was asked for something.
  if (of_probe && has_left(peer)) return std::nullopt;
  const auto syndrome = static_cast<net::Syndrome>(error.syndrome);
  int origin = is_of_peer(error.syndrome) ? peer.rank : options_.rank;
  const std::string what =
      of_probe ? "asked whether it is there"
               : fmt::format("operation {:#04x}, entry {}", error.opcode, error.index);
  std::string why;
  if (peer.failover != nullptr) {
    // It is flushed for what the peer's own entries have met.
    if (syndrome == net::Syndrome::flushed) origin = peer.rank;
    if (syndrome == net::Syndrome::transport_retry && is_cut_off()) origin = options_.rank;
    const auto failure = peer.failover->failure();
    if (failure.has_value()) why = "; " + failure->message();
  }
  if (origin == peer.rank) why += wires_say(peer);
  return Error(ErrorCode::remote,
               fmt::format("the queue from rank {} to rank {} has failed: {} (syndrome {:#04x}, "
                           "{}){}",
                           options_.rank, peer.rank, describe(error.syndrome), error.syndrome, what,
                           why))
      .with_origin(origin);
}

std::optional<Error> Network::failure() const {
  if (rings_ != nullptr) {
    if (auto failed = rings_->failure()) return failed;
  }
  for (const Peer& peer : peers_) {
    if (auto failed = queue_failure(peer)) return failed;
  }
  return std::nullopt;
}

void Network::probe(TimePoint now, const std::uint32_t* abort) {
  const std::lock_guard lock(probe_mutex_);
  if (now - probed_ < kProbeInterval) return;
  probed_ = now;
  // By whoever drives the NIC: its lock may be held for as long as a GPU copies.
  probes_are_due_ = true;
  for (Peer& peer : peers_) {
    if (peer.failover != nullptr && !has_left(peer)) probe_by_entry(peer, abort);
  }
  device::ring(*view_.bell);
}

void Network::send_probes() {
  for (const Peer& peer : peers_) {
    if (peer.failover != nullptr || has_left(peer)) continue;
    static_cast<void>(nics_[0]->nic.probe(peer.number()));  // the queue is there
  }
}

/// A queue with backup paths: the entry goes on by another one when its path fails.
void Network::probe_by_entry(Peer& peer, const std::uint32_t* abort) {
  namespace dq = device::queue;
  device::WaitControl control;
  control.abort = abort;
  const dq::QueueView& queue = peer.view();
  if (!dq::detail::look_in_turn<device::Memory>(queue)) return;
  const auto completed = dq::detail::load_index<device::Memory>(&queue.indexes->completed);
  const auto reserved = dq::detail::load_index<device::Memory>(&queue.indexes->reserved);
  if (completed != reserved) return;  // something else will tell
  // A write of no bytes, for which no key is needed.
  dq::Reservation place;
  const device::Thread self;
  if (dq::reserve(self, queue, 1, place, control) != dq::QueueOutcome::done) return;
  peer.probe = static_cast<std::uint16_t>(place.base);
  dq::write_entry(queue, place, 0,
                  dq::inline_write_entry({queue.number, place.base}, dq::kSignalled, {},
                                         dq::InlineBytes(nullptr, 0)));
  static_cast<void>(dq::publish(self, queue, place, control));
}

}  // namespace oriel::comm
