// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "base/descriptor_room.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"
#include "boot/auth/socket_address.hpp"
#include "comm/network/network_soft.hpp"
#include "topo/choice/lsa_teams.hpp"
#include "topo/choice/placement.hpp"

/// Which wire joins a rank's NIC with which others, and how the wires are made.
namespace oriel::comm {
namespace {

/// Half of it, with pieces of half the bytes, made large messages of GPUs 4 to 12 % slower; those
/// of CPUs do not care (docs/performance.md).
constexpr std::size_t kRingBytes = std::size_t{512} << 10;
/// Windows have exchanges of their own, which are told apart by a rank.
constexpr std::uint64_t kExchangeTag = std::uint64_t{1} << 32;

/// One that the user has named.
Status check_interface(const std::string& name, const boot::SocketOptions& options) {
  auto found = boot::choose_interface(options);
  if (found.ok()) return {};
  if (found.error().code() != ErrorCode::invalid_usage) return std::move(found).error();
  return Error(ErrorCode::invalid_usage,
               fmt::format("ORIEL_PATHS names {}, which is no network interface that is up, "
                           "connected and has an IP address",
                           name));
}

}  // namespace

std::uint32_t SoftNetwork::fabric_buffers(std::size_t peers, std::uint32_t least) {
  constexpr std::size_t kBuffersForPeer = 8;
  constexpr std::size_t kBuffersMost = 4096;
  return static_cast<std::uint32_t>(
      std::clamp<std::size_t>(kBuffersForPeer * peers, least, kBuffersMost));
}

/// The first one, and as many more as paths to any peer begin at.
void SoftNetwork::make_nics() {
  std::size_t nics = 1;
  for (const auto& paths : paths_to_) {
    for (const PathPair& path : paths) nics = std::max<std::size_t>(nics, path.own + 1u);
  }
  while (nics_.size() < nics) nics_.push_back(std::make_unique<Nic>());
  for (const auto& nic : nics_) {
    nic->domain = nic->nic.create_domain();
    if (!on_gpu()) continue;
    if (has_backups()) nic->mover.emplace(*nic_memory_.mover, mover_mutex_);
    nic->nic.serve_gpu(has_backups() ? *nic->mover : *nic_memory_.mover);
  }
}

/// Each NIC's own wire.
Status SoftNetwork::open_fabric() {
  for (std::size_t at = 0; at < nics_.size(); ++at) ORIEL_CHECK(open_fabric(at));
  return {};
}

Status SoftNetwork::open_fabric(std::size_t at) {
  std::size_t peers = 0;
  int first = -1;
  for (const int rank : peers_of_rank_) {
    const auto& paths = paths_to_[static_cast<std::size_t>(rank)];
    const bool is_used = std::any_of(paths.begin(), paths.end(),
                                     [at](const PathPair& path) { return path.own == at; });
    if (!by_fabric_[static_cast<std::size_t>(rank)] || !is_used) continue;
    if (peers++ == 0) first = rank;
  }
  if (peers == 0) return {};
  // libfabric opens connections when they are first used, and keeps it to itself where it cannot.
  constexpr std::size_t kForEach = 2;
  constexpr std::size_t kForItself = 8;
  ORIEL_CHECK(check_descriptor_room(kForEach * peers + kForItself));
  net::WireFabric::Options options;
  options.key = options_.wire_key;
  options.provider = options_.settings->fabric_provider;
  options.socket.ifname = options_.settings->socket_ifname;
  if (!interfaces_[at].empty()) {
    options.socket.ifname = "=" + interfaces_[at];
    ORIEL_CHECK(check_interface(interfaces_[at], options.socket));
  }
  options.receives = fabric_buffers(peers, kFabricReceives);
  options.sends = fabric_buffers(peers, options.sends);
  options.payload_bytes_most = kFabricPieceBytes;
  auto made = net::WireFabric::create(options);
  if (!made.ok()) {
    return std::move(made).error().with_context(
        interfaces_[at].empty() ? fmt::format("making a wire over libfabric to rank {}", first)
                                : fmt::format("making a wire over libfabric and {} to rank {}",
                                              interfaces_[at], first));
  }
  Nic& nic = *nics_[at];
  nic.fabric = made.value().get();
  hello_.fabrics.resize(at);  // nobody asks for the address of one that reaches no peer
  hello_.fabrics.push_back(nic.fabric->local_address());
  nic.fabric_wire = nic.nic.add_wire(std::move(made).value());
  return check_backup_provider(at);
}

/// Adapters that have no interface of this kind would be the same one for each path.
Status SoftNetwork::check_backup_provider(std::size_t at) const {
  if (at == 0) return {};
  const std::string provider = nics_[at]->fabric->provider();
  if (!provider.starts_with("efa")) return {};
  return Error(
             ErrorCode::invalid_usage,
             fmt::format("the provider {} does not tell {} from {}: there is no backup path by it",
                         provider, interfaces_[0], interfaces_[at]))
      .with_hint("unset ORIEL_PATHS, or name another provider with ORIEL_FABRIC_PROVIDER");
}

Status SoftNetwork::listen_for_rings() {
  const auto size = static_cast<std::size_t>(options_.world->size());
  std::vector<int> ranks(size);
  std::vector<bool> linked(size, false);
  for (std::size_t rank = 0; rank < size; ++rank) ranks[rank] = static_cast<int>(rank);
  bool any = false;
  for (const Peer& peer : peers_) {
    if (peer.by_fabric) continue;
    any = linked[static_cast<std::size_t>(peer.rank)] = true;
  }
  if (!any) return {};
  exchange_ =
      std::make_unique<window::FdExchange>(options_.key, options_.communicator, kExchangeTag,
                                           std::move(ranks), options_.rank, std::move(linked));
  exchange_->watch(*options_.world);
  ORIEL_TRY(hello_.socket, exchange_->listen());
  return {};
}

/// Each receiver makes the ring in which it is written to.
Status SoftNetwork::make_rings(std::vector<std::vector<OwnedFd>>& outgoing,
                               std::vector<net::RingReader>& readers) {
  const std::size_t bytes = net::ring_memory_bytes(kRingBytes);
  for (const Peer& peer : peers_) {
    if (peer.by_fabric) continue;
    auto& fds = outgoing[static_cast<std::size_t>(peer.rank)];
    ORIEL_TRY(OwnedFd ring, make_sealed_memfd(bytes));
    ORIEL_TRY(SharedMapping mapping, SharedMapping::map(ring, bytes));
    readers.emplace_back(std::move(mapping), kRingBytes);
    OwnedFd bell(sys().fcntl_int(bell_fd_.get(), F_DUPFD_CLOEXEC, 0));
    if (!bell) return system_error("duplicating a memfd");
    fds.push_back(std::move(ring));
    fds.push_back(std::move(bell));
  }
  return {};
}

Status SoftNetwork::take_rings(std::vector<std::vector<OwnedFd>> arrived,
                               std::vector<net::RingReader> readers) {
  const std::size_t bytes = net::ring_memory_bytes(kRingBytes);
  auto wire = std::make_unique<net::RingWire>(address_on_rings(options_.rank));
  auto reader = readers.begin();
  for (const Peer& peer : peers_) {
    if (peer.by_fabric) continue;
    const int rank = peer.rank;
    const auto& fds = arrived[static_cast<std::size_t>(rank)];
    for (const auto& [fd, wanted] :
         {std::pair(&fds[0], bytes), std::pair(&fds[1], net::RingBell::kMemoryBytes)}) {
      Status sealed = check_sealed_memfd(*fd, wanted);
      if (sealed.ok()) continue;
      Error error = std::move(sealed).error();
      if (error.code() != ErrorCode::remote) return error;
      return std::move(error).with_origin(rank);
    }
    ORIEL_TRY(SharedMapping ring, SharedMapping::map(fds[0], bytes));
    ORIEL_TRY(SharedMapping bell, SharedMapping::map(fds[1], net::RingBell::kMemoryBytes));
    wire->add_peer(address_on_rings(rank), rank, peer.number(),
                   net::RingWriter(std::move(ring), kRingBytes), std::move(*reader++),
                   net::RingBell(std::move(bell)));
  }
  rings_ = wire.get();
  ring_wire_ = nics_[0]->nic.add_wire(std::move(wire));
  return {};
}

Task<Status> SoftNetwork::join_rings(EventLoop& loop, Deadline deadline) {
  if (exchange_ == nullptr) {
    bell_fd_.reset();
    co_return Status();
  }
  ORIEL_CO_CHECK(co_await exchange_->prove(loop, deadline));
  const auto size = static_cast<std::size_t>(options_.world->size());
  std::vector<std::vector<OwnedFd>> outgoing(size);
  std::vector<net::RingReader> readers;
  Status made = make_rings(outgoing, readers);
  if (!made.ok()) {
    exchange_->disconnect();  // which ends the peers' waits
    co_return made;
  }
  std::vector<std::size_t> counts(size, 0);
  for (const Peer& peer : peers_) {
    if (!peer.by_fabric) counts[static_cast<std::size_t>(peer.rank)] = 2;
  }
  ORIEL_CO_TRY(auto arrived, co_await exchange_->exchange_each(loop, std::move(outgoing),
                                                               std::move(counts), deadline));
  bell_fd_.reset();
  co_return take_rings(std::move(arrived), std::move(readers));
}

/// Ranks that rings join can map each other's memory too, but for GPUs that do not reach each
/// other.
void SoftNetwork::join_windows() {
  if (!options_.settings->direct_copy) {
    exchange_.reset();
    return;
  }
  DirectPath path;
  path.exchange = exchange_.get();
  path.memory = &options_.device->memory();
  path.peers.assign(static_cast<std::size_t>(options_.world->size()), false);
  const auto& infos = options_.topology->infos;
  const topo::RankInfo& own = infos[static_cast<std::size_t>(options_.rank)];
  for (const Peer& peer : peers_) {
    if (peer.by_fabric) continue;
    // As if nobody had named their nodes.
    topo::RankInfo other = infos[static_cast<std::size_t>(peer.rank)];
    other.node = own.node;
    path.peers[static_cast<std::size_t>(peer.rank)] =
        topo::can_map(own, other) && topo::can_map(other, own);
  }
  options_.windows->use_direct(std::move(path));
}

}  // namespace oriel::comm
