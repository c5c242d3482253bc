// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "scale/modelled_start.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "base/try.hpp"
#include "boot/auth/socket_address.hpp"

namespace oriel::scale {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kRealm = 1;
constexpr std::uint64_t kRootProcess = 1;  // process id of rank 0
constexpr std::uint32_t kTimeoutMs = 600'000;

template <std::size_t kSize>
Bytes bytes_of(const std::array<std::byte, kSize>& from) {
  return {from.begin(), from.end()};
}
/// Returns the message as kSize bytes, or nothing if it has another size.
template <std::size_t kSize>
std::optional<std::span<const std::byte, kSize>> exactly(const Bytes& message) {
  if (message.size() != kSize) return std::nullopt;
  return std::span<const std::byte, kSize>(message.data(), kSize);
}

boot::SocketAddress address_of(int rank) {
  const auto at = static_cast<std::uint32_t>(rank / kRanksOfNode);
  return boot::SocketAddress::ipv4(
      {10, 0, static_cast<std::uint8_t>(at >> 8), static_cast<std::uint8_t>(at)},
      static_cast<std::uint16_t>(40000 + rank % kRanksOfNode));
}

}  // namespace

ModelledStart::ModelledStart(int size, Model model, bool gathers, int turn)
    : size_(size),
      gathers_(gathers),
      turn_(turn),
      links_wanted_(boot::link_neighbours(0, size).size()),
      network_(size + 1, model),
      rendezvous_(kRootProcess, Deadline::at(TimePoint(10min))),
      members_(std::make_shared<std::vector<int>>(static_cast<std::size_t>(size))),
      ranks_(static_cast<std::size_t>(size)) {
  const boot::Key secret = boot::Key::random();
  root_key_ = boot::Key::derive(secret, boot::KeyPurpose::rendezvous, kRealm);
  link_key_ = boot::Key::derive(secret, boot::KeyPurpose::link, kRealm);
  std::iota(members_->begin(), members_->end(), 0);
  network_.set_handler(root(), [this](int from, const Bytes& message) { at_root(from, message); });
  for (int rank = 0; rank < size; ++rank) {
    network_.set_handler(rank, [this, rank](int from, const Bytes& message) {
      if (at(rank).failed) return;
      if (from == root()) return from_root(rank, message);
      from_rank(rank, from, message);
    });
  }
}

bool ModelledStart::run() {
  for (int rank = 0; rank < size_; ++rank) {
    at(rank).to_root.emplace(boot::KeyPurpose::rendezvous, kRealm, root_key_,
                             boot::AuthClaim{.from = rank, .to = -1, .tag = 0});
    connect(rank, root());
  }
  network_.run();
  const bool all_ended = std::all_of(ranks_.begin(), ranks_.end(), [](Rank& rank) {
    return rank.last_part && rank.last_part->done() && rank.last_part->take().ok();
  });
  return all_ended && rendezvous_.finished() && clients_.empty();
}

std::size_t ModelledStart::most_links() const {
  std::size_t most = 0;
  for (const Rank& rank : ranks_) most = std::max(most, rank.links.size());
  return most;
}

/// Models a connection by an empty message after the two messages of TCP.
void ModelledStart::connect(int from, int to) {
  network_.post(from, to, Bytes(), 2 * network_.model().latency);
}

void ModelledStart::at_root(int from, const Bytes& message) {
  if (++in_turn_ == turn_) take_turn();
  const auto found = clients_.find(from);
  if (found == clients_.end()) {
    const Client& client = clients_[from];
    most_clients_ = std::max(most_clients_, clients_.size());
    return network_.post(root(), from, bytes_of(client.responder.challenge()));
  }
  Client& client = found->second;
  if (!client.is_authenticated) {
    const auto response = exactly<boot::AuthSizes::kResponse>(message);
    if (!response) return;
    const auto confirmation = client.responder.answer(
        *response, [this](std::uint64_t realm) { return realm == kRealm ? &root_key_ : nullptr; });
    if (!confirmation.ok()) return;
    client.is_authenticated = true;
    return network_.post(root(), from, bytes_of(confirmation.value()));
  }
  const auto started = std::chrono::steady_clock::now();
  const auto connection = static_cast<boot::Rendezvous::Connection>(from);
  if (!client.has_hello) {
    const auto hello = boot::RootHello::decode(message);
    if (!hello.ok()) return;
    client.has_hello = true;
    rendezvous_.on_hello(connection, hello.value(), time_at(root()));
  } else if (message == Bytes{boot::kRootDone}) {
    rendezvous_.on_done(connection);
    clients_.erase(found);
  }
  auto outgoing = rendezvous_.take_outgoing();
  root_processor_ += std::chrono::steady_clock::now() - started;
  for (auto& [to, frame] : outgoing) {
    network_.post(root(), static_cast<int>(to), std::move(frame));
  }
}

void ModelledStart::take_turn() {
  in_turn_ = 0;
  const auto started = std::chrono::steady_clock::now();
  static_cast<void>(rendezvous_.next_timer());
  rendezvous_.on_time(time_at(root()));
  root_processor_ += std::chrono::steady_clock::now() - started;
}

void ModelledStart::from_root(int rank, const Bytes& message) {
  Rank& self = at(rank);
  if (!self.to_root) {
    std::vector<boot::Frame> frames;
    self.failed = !self.reader.feed(message, frames).ok();
    for (const boot::Frame& frame : frames) on_frame(rank, frame);
    return;
  }
  if (!self.has_responded) {
    const auto challenge = exactly<boot::AuthSizes::kChallenge>(message);
    const auto response = challenge ? self.to_root->respond(*challenge) : boot::AuthResponse();
    self.failed = !challenge || !response.ok();
    if (self.failed) return;
    self.has_responded = true;
    return network_.post(rank, root(), bytes_of(response.value()));
  }
  const auto confirmation = exactly<boot::AuthSizes::kConfirmation>(message);
  self.failed = !confirmation || !self.to_root->confirm(*confirmation).ok();
  if (self.failed) return;
  self.to_root.reset();
  const std::uint64_t process = kRootProcess + static_cast<std::uint64_t>(rank);
  const boot::RootHello hello = {.rank = rank,
                                 .size = size_,
                                 .timeout_ms = kTimeoutMs,
                                 .process = process,
                                 .address = address_of(rank)};
  network_.post(rank, root(), hello.encode());
}

void ModelledStart::on_frame(int rank, const boot::Frame& frame) {
  Rank& self = at(rank);
  if (frame.kind == boot::FrameKind::root_host) return;
  const auto peers = boot::decode_peers(frame.payload, size_);
  self.failed = frame.kind != boot::FrameKind::root_peers || !peers.ok();
  if (self.failed) return;
  for (const auto& [peer, address] : peers.value()) {
    self.failed = self.failed || !(address == address_of(peer));
    self.dials.try_emplace(
        peer,
        boot::AuthInitiator(boot::KeyPurpose::link, kRealm, link_key_, {.from = rank, .to = peer}),
        false);
    connect(rank, peer);
  }
}

/// Handles a message between two ranks; the higher rank has connected.
void ModelledStart::from_rank(int rank, int peer, const Bytes& message) {
  if (peer > rank) return answer(rank, peer, message);
  Rank& self = at(rank);
  const auto found = self.dials.find(peer);
  if (found == self.dials.end()) return;
  auto& [initiator, has_responded] = found->second;
  if (!has_responded) {
    const auto challenge = exactly<boot::AuthSizes::kChallenge>(message);
    const auto response = challenge ? initiator.respond(*challenge) : boot::AuthResponse();
    self.failed = !challenge || !response.ok();
    if (self.failed) return;
    has_responded = true;
    return network_.post(rank, peer, bytes_of(response.value()));
  }
  const auto confirmation = exactly<boot::AuthSizes::kConfirmation>(message);
  self.failed = !confirmation || !initiator.confirm(*confirmation).ok();
  if (self.failed) return;
  self.dials.erase(found);
  add_link(rank, peer);
}

void ModelledStart::answer(int rank, int peer, const Bytes& message) {
  Rank& self = at(rank);
  const auto found = self.callers.find(peer);
  if (found == self.callers.end()) {
    const auto caller = self.callers.emplace(peer, boot::KeyPurpose::link).first;
    return network_.post(rank, peer, bytes_of(caller->second.challenge()));
  }
  const auto response = exactly<boot::AuthSizes::kResponse>(message);
  if (!response) return;
  const auto confirmation = found->second.answer(
      *response, [this](std::uint64_t realm) { return realm == kRealm ? &link_key_ : nullptr; });
  self.failed = !confirmation.ok() || found->second.claim().from != peer;
  if (self.failed) return;
  network_.post(rank, peer, bytes_of(confirmation.value()));
  self.callers.erase(found);
  add_link(rank, peer);
}

void ModelledStart::add_link(int rank, int peer) {
  Rank& self = at(rank);
  self.links.push_back(peer);
  if (self.links.size() < links_wanted_) return;
  std::sort(self.links.begin(), self.links.end());
  self.failed = self.links != boot::link_neighbours(rank, size_);
  if (self.failed) return;
  linked_ = std::max(linked_, network_.clock(rank));
  self.last_part = end(rank);
  self.last_part->start();
}

Task<Status> ModelledStart::end(int rank) {
  if (gathers_) {
    Rank& self = at(rank);
    self.world = boot::Group::sharing(network_.transport(rank), members_, rank);
    ByteWriter mine;
    address_of(rank).encode(mine);
    Bytes encoded = mine.take();
    ORIEL_CO_TRY(const std::vector<Bytes> all,
                 co_await self.world->all_gather(boot::Operation::join, std::move(encoded)));
    for (int peer = 0; peer < size_; ++peer) {
      ByteReader reader(all[static_cast<std::size_t>(peer)]);
      ORIEL_CO_TRY(const boot::SocketAddress address, boot::SocketAddress::decode(reader));
      if (!(address == address_of(peer))) co_return Error(ErrorCode::internal, "another address");
    }
  }
  Bytes done{boot::kRootDone};
  network_.post(rank, root(), std::move(done));
  co_return Status();
}

}  // namespace oriel::scale
