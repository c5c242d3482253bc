// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/wire_fabric.hpp"

#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <sched.h>

#include "base/try.hpp"
#include "net/fabric/fabric_provider.hpp"
#include "net/fabric/wire_fabric_state.hpp"

namespace oriel::net {

using namespace fabric;

namespace {

constexpr std::uint32_t kBuffersLeast = 4;
constexpr std::uint32_t kBuffersMost = 4096;

}  // namespace

WireFabric::WireFabric(std::unique_ptr<State> state) : state_(std::move(state)) {}
WireFabric::~WireFabric() = default;

void WireFabric::prepare(const std::string& provider) {
  if (fabric_stand_in() != nullptr || !fabric_library().missing.empty()) return;
  if (provider.starts_with("shm")) return;  // a search would remove shm's signal handlers
  static const bool is_discovered = (discover_fabrics(fabric_library().table), true);
  static_cast<void>(is_discovered);
}

Result<std::unique_ptr<WireFabric>> WireFabric::create(const Options& options) {
  for (const std::uint32_t buffers : {options.receives, options.sends}) {
    if (buffers >= kBuffersLeast && buffers <= kBuffersMost) continue;
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a fabric wire has {} to {} buffers for either direction, not {}",
                             kBuffersLeast, kBuffersMost, buffers))
        .with_hint("set Options::receives or Options::sends to such a number");
  }
  if (options.payload_bytes_most == 0 || options.payload_bytes_most > kPieceBytesMost) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a fabric wire carries messages of 1 to {} bytes, not of {}",
                             kPieceBytesMost, options.payload_bytes_most))
        .with_hint("set Options::payload_bytes_most to an allowed value");
  }
  const FabricTable* table = options.table != nullptr ? options.table : fabric_stand_in();
  if (table == nullptr) {
    const FabricLibrary& library = fabric_library();
    if (!library.missing.empty()) {
      static_assert(kFabricVersionLeast == FI_VERSION(1, 17), "the hint names this version");
      return Error(ErrorCode::invalid_usage, library.missing)
          .with_hint(
              "install libfabric 1.17 or later on every host, in Debian the package libfabric1");
    }
    table = &library.table;
  }
  FabricRequest request;
  request.provider = options.provider;
  request.socket = options.socket;
  request.message_bytes = kBatchFrameBytesMost + options.payload_bytes_most;
  ORIEL_TRY(FabricInfo info, choose_fabric(*table, request));
  auto state = std::make_unique<State>(*table, options, std::move(info));
  ORIEL_CHECK(state->open());
  return std::unique_ptr<WireFabric>(new WireFabric(std::move(state)));
}

Bytes WireFabric::local_address() const {
  return state_->encoded;
}

std::string WireFabric::provider() const {
  return state_->end.own.provider;
}

WireAddress WireFabric::address() const {
  return {state_->end.own.id};
}

Result<WireAddress> WireFabric::add_peer(ByteView address, std::string name,
                                         std::vector<std::uint32_t> queues) {
  Result<FabricAddress> decoded = decode_fabric_address(address);
  if (!decoded.ok()) return std::move(decoded).error().with_context("the address of " + name);
  const FabricAddress& theirs = decoded.value();
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const FabricAddress& own = state.end.own;
  if (theirs.provider != own.provider || theirs.format != own.format ||
      theirs.address.size() != own.address.size()) {
    return Error(ErrorCode::remote,
                 fmt::format("{} is reached by {} (addresses of format {}, {} bytes), this rank by "
                             "{} (format {}, {} bytes)",
                             name, theirs.provider, theirs.format, theirs.address.size(),
                             own.provider, own.format, own.address.size()))
        .with_hint("set ORIEL_FABRIC_PROVIDER and ORIEL_SOCKET_IFNAME alike on all hosts");
  }
  const Peer* const known = state.end.peers.find({theirs.id});
  if (theirs.id == own.id || known != nullptr) {
    return Error(ErrorCode::invalid_usage, fmt::format("the address of {} is that of {}", name,
                                                       known != nullptr ? known->name : "this end"))
        .with_hint("add each peer once, with the address that its own local_address() returned");
  }
  if (state.is_cut) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} cannot be added: this end of the wire has been cut", name))
        .with_hint("add all peers before the wire is cut, or start a new communicator");
  }
  auto peer = std::make_unique<Peer>();
  ORIEL_TRY(peer->where, state.end.endpoint->add(theirs.address));
  peer->name = std::move(name);
  peer->address = {theirs.id};
  peer->outgoing.keys = frame_keys(state.end.options.key, own, theirs);
  peer->incoming.keys = frame_keys(state.end.options.key, theirs, own);
  peer->authenticate_payloads = theirs.authenticates_payloads || own.authenticates_payloads;
  peer->payload_bytes_most = theirs.payload_bytes_most;
  peer->queues = std::move(queues);
  state.end.peers.add(std::move(peer));
  return WireAddress{theirs.id};
}

bool WireFabric::send(WireAddress to, WireMessage& message) {
  const std::lock_guard lock(state_->mutex);
  Peer* const peer = state_->find_open(to);
  return peer == nullptr || state_->send(*peer, message);
}

bool WireFabric::receive(WireMessage& message) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (!state.receiver.has_arrived() && !state.has_polled) {
    state.poll();
    state.has_polled = true;
  }
  if (state.receiver.take(message)) return true;
  state.has_polled = false;
  return false;
}

void WireFabric::end_turn() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->is_cut) state_->sender.send_batches();
}

WireSign WireFabric::sign_of(WireAddress peer) {
  const std::lock_guard lock(state_->mutex);
  const Peer* const found = state_->end.peers.find(peer);
  return found != nullptr ? found->sign : WireSign();
}

Status WireFabric::status() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->end.error.has_value()) return *state_->end.error;
  return {};
}

Status WireFabric::peer_status(WireAddress peer) const {
  const std::lock_guard lock(state_->mutex);
  const Peer* const found = state_->end.peers.find(peer);
  if (found == nullptr) {
    return Error(ErrorCode::invalid_argument, fmt::format("this end has no peer {:#x}", peer.value))
        .with_hint("pass a peer that add_peer() has returned");
  }
  if (found->error.has_value()) return *found->error;
  return {};
}

int WireFabric::wait_descriptor() const {
  const std::lock_guard lock(state_->mutex);
  return state_->is_cut ? -1 : state_->end.endpoint->wait_descriptor();
}

bool WireFabric::may_sleep() {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (state.is_cut) return false;
  const bool is_idle =
      state.receiver.is_idle() && !state.reads.is_reading() && state.sender.under_way() == 0;
  return is_idle && state.end.endpoint->may_sleep();
}

Status WireFabric::flush(Deadline deadline) {
  State& state = *state_;
  for (;;) {
    {
      const std::lock_guard lock(state.mutex);
      state.poll();
      const std::size_t left = state.sender.under_way();
      if (left == 0 || state.is_cut) return {};
      if (deadline.expired(state.end.now())) {
        return Error(ErrorCode::timeout,
                     fmt::format("{} messages have not left the fabric wire", left));
      }
    }
    ::sched_yield();
  }
}

bool WireFabric::can_read(WireAddress peer) {
  const std::lock_guard lock(state_->mutex);
  const Peer* const other = state_->find_open(peer);
  return other != nullptr && !other->authenticate_payloads && state_->end.endpoint->can_read();
}

std::optional<WireSource> WireFabric::expose(WireAddress peer, const std::byte* from,
                                             std::size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  const Peer* const other = state_->find_open(peer);
  if (other == nullptr) return std::nullopt;
  return state_->reads.expose(*other, from, bytes);
}

void WireFabric::revoke(WireAddress peer, const WireSource& source) {
  const std::lock_guard lock(state_->mutex);
  state_->reads.revoke(peer, source);
}

std::shared_ptr<RendezvousRead> WireFabric::rendezvous_read(WireAddress peer,
                                                            const WireSource& source,
                                                            const WireTarget& target) {
  const std::lock_guard lock(state_->mutex);
  return state_->reads.rendezvous_read(state_->find_open(peer), source, target);
}

bool WireFabric::is_reading(std::uint32_t key) {
  const std::lock_guard lock(state_->mutex);
  return state_->reads.is_reading(key);
}

std::vector<WireAddress> WireFabric::reads_by(std::uint32_t key) {
  const std::lock_guard lock(state_->mutex);
  std::vector<WireAddress> whom;
  state_->end.peers.for_each([&](const Peer& peer) {
    if (state_->reads.is_reading(key, peer)) whom.push_back(peer.address);
  });
  return whom;
}

bool WireFabric::cut(std::span<const WireAddress> peers) {
  const std::lock_guard lock(state_->mutex);
  std::vector<Peer*> whom;
  for (const WireAddress& peer : peers) {
    // Skips peers that were cut before: a second cut would again cost all others the messages in
    // flight.
    if (Peer* const found = state_->find_open(peer)) whom.push_back(found);
  }
  if (!whom.empty()) state_->cut(whom);
  return state_->is_cut;
}

}  // namespace oriel::net
