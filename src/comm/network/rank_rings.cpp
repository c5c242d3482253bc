// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/rank_rings.hpp"

#include <numeric>
#include <utility>

#include <fcntl.h>

#include "base/shared_memory.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"
#include "topo/choice/lsa_teams.hpp"

namespace oriel::comm {
namespace {

/// Size of a ring. Half of it, with pieces of half the bytes, made large messages of GPUs 4 to 12 %
/// slower. Messages of CPUs were no slower (docs/notes/nodes.md).
constexpr std::size_t kRingBytes = std::size_t{512} << 10;
/// Tag of this exchange. Exchanges for windows are tagged with a rank instead.
constexpr std::uint64_t kExchangeTag = std::uint64_t{1} << 32;

}  // namespace

Status RankRings::make_doorbell() {
  ORIEL_TRY(doorbell_fd_, make_sealed_memfd(net::RingDoorbell::kMemoryBytes));
  ORIEL_TRY(SharedMapping doorbell,
            SharedMapping::map(doorbell_fd_, net::RingDoorbell::kMemoryBytes));
  doorbell_.emplace(std::move(doorbell));
  return {};
}

Result<window::FdSocketName> RankRings::listen(std::vector<Peer> peers) {
  peers_ = std::move(peers);
  if (peers_.empty()) return window::FdSocketName{};
  const auto size = static_cast<std::size_t>(options_.size());
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<bool> linked(size, false);
  for (const Peer& peer : peers_) linked[static_cast<std::size_t>(peer.rank)] = true;
  exchange_ = std::make_unique<window::FdExchange>(
      options_.session->key(boot::KeyPurpose::fd_exchange), options_.communicator, kExchangeTag,
      std::move(ranks), options_.rank(), std::move(linked));
  exchange_->watch(options_.session->world());
  return exchange_->listen();
}

Task<Status> RankRings::dial(EventLoop& loop, std::vector<window::FdSocketName> names,
                             Deadline deadline) {
  return exchange_->dial(loop, std::move(names), deadline);
}

Task<Status> RankRings::join(EventLoop& loop, net::NicSoft& nic, Deadline deadline) {
  if (exchange_ == nullptr) {
    doorbell_fd_.reset();
    co_return Status();
  }
  ORIEL_CO_CHECK(co_await exchange_->authenticate(loop, deadline));
  const auto size = static_cast<std::size_t>(options_.size());
  std::vector<std::vector<OwnedFd>> outgoing(size);
  std::vector<net::RingReader> readers;
  Status made = make_rings(outgoing, readers);
  if (!made.ok()) {
    exchange_->disconnect();  // ends the peers' waits
    co_return made;
  }
  std::vector<std::size_t> counts(size, 0);
  for (const Peer& peer : peers_) counts[static_cast<std::size_t>(peer.rank)] = 2;
  ORIEL_CO_TRY(auto arrived, co_await exchange_->exchange_each(loop, std::move(outgoing),
                                                               std::move(counts), deadline));
  doorbell_fd_.reset();
  co_return take_rings(std::move(arrived), std::move(readers), nic);
}

/// Creates the rings that this rank receives from: each receiver creates its ring.
Status RankRings::make_rings(std::vector<std::vector<OwnedFd>>& outgoing,
                             std::vector<net::RingReader>& readers) {
  const std::size_t bytes = net::ring_memory_bytes(kRingBytes);
  for (const Peer& peer : peers_) {
    auto& fds = outgoing[static_cast<std::size_t>(peer.rank)];
    ORIEL_TRY(OwnedFd ring, make_sealed_memfd(bytes));
    ORIEL_TRY(SharedMapping mapping, SharedMapping::map(ring, bytes));
    readers.emplace_back(std::move(mapping), kRingBytes);
    OwnedFd doorbell(sys().fcntl_int(doorbell_fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!doorbell) return system_error("duplicating a memfd");
    fds.push_back(std::move(ring));
    fds.push_back(std::move(doorbell));
  }
  return {};
}

Status RankRings::take_rings(std::vector<std::vector<OwnedFd>> arrived,
                             std::vector<net::RingReader> readers, net::NicSoft& nic) {
  const std::size_t bytes = net::ring_memory_bytes(kRingBytes);
  auto wire = std::make_unique<net::RingWire>(address_of(options_.rank()));
  auto reader = readers.begin();
  for (const Peer& peer : peers_) {
    const auto& fds = arrived[static_cast<std::size_t>(peer.rank)];
    for (const auto& [fd, wanted] :
         {std::pair(&fds[0], bytes), std::pair(&fds[1], net::RingDoorbell::kMemoryBytes)}) {
      Status sealed = check_sealed_memfd(*fd, wanted);
      if (sealed.ok()) continue;
      Error error = std::move(sealed).error();
      if (error.code() != ErrorCode::remote) return error;
      return std::move(error).with_origin(peer.rank);
    }
    ORIEL_TRY(SharedMapping ring, SharedMapping::map(fds[0], bytes));
    ORIEL_TRY(SharedMapping doorbell, SharedMapping::map(fds[1], net::RingDoorbell::kMemoryBytes));
    wire->add_peer(address_of(peer.rank), peer.rank, peer.queue,
                   net::RingWriter(std::move(ring), kRingBytes), std::move(*reader++),
                   net::RingDoorbell(std::move(doorbell)));
  }
  wire_ = wire.get();
  wire_number_ = nic.add_wire(std::move(wire));
  return {};
}

std::optional<Error> RankRings::failure() const {
  return wire_ != nullptr ? wire_->failure() : std::nullopt;
}

DirectPath RankRings::direct_path() const {
  DirectPath path;
  path.exchange = exchange_.get();
  path.memory = &options_.device->memory();
  path.peers.assign(static_cast<std::size_t>(options_.size()), false);
  const auto& infos = options_.topology->infos;
  const topo::RankInfo& own = infos[static_cast<std::size_t>(options_.rank())];
  for (const Peer& peer : peers_) {
    // Compares the ranks as if no setting had named their nodes.
    topo::RankInfo other = infos[static_cast<std::size_t>(peer.rank)];
    other.node = own.node;
    path.peers[static_cast<std::size_t>(peer.rank)] =
        topo::can_map(own, other) && topo::can_map(other, own);
  }
  return path;
}

}  // namespace oriel::comm
