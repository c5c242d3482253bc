// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/session.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/session/rendezvous.hpp"

namespace oriel::boot {
namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Session::Session(std::uint64_t number, const Key& secret, int rank, int size)
    : rank_(rank),
      size_(size),
      number_(number),
      peers_(rank),
      transport_(peers_, rank),
      world_(transport_, all_ranks(size), rank) {
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    keys_[i] = Key::derive(secret, static_cast<KeyPurpose>(i + 1), number);
  }
}

const Key& Session::key(KeyPurpose purpose) const {
  const auto index = static_cast<std::size_t>(purpose) - 1;
  return keys_[std::min(index, keys_.size() - 1)];
}

void Session::note_address(int peer, const SocketAddress& address) {
  // Interface numbers differ between hosts; use the scope of the interface that this rank listens
  // on.
  addresses_[peer] = address.is_link_local() ? address.with_scope(own_address_.scope()) : address;
}

Task<Status> Session::link_up() {
  std::vector<int> neighbours = link_neighbours(rank_, size_);
  ORIEL_CO_CHECK(co_await transport_.link_to(std::move(neighbours), addresses_));
  co_return co_await exchange_addresses();
}

// Exchanges all addresses. Also the barrier that ends a start: afterwards every link is up on both
// sides.
Task<Status> Session::exchange_addresses() {
  ByteWriter mine;
  own_address_.encode(mine);
  Bytes encoded = mine.take();
  ORIEL_CO_TRY(const std::vector<Bytes> all,
               co_await world_.all_gather(Operation::join, std::move(encoded)));
  for (int peer = 0; peer < size_; ++peer) {
    ByteReader reader(all[static_cast<std::size_t>(peer)]);
    auto address = SocketAddress::decode(reader);
    if (!address.ok()) {
      abort(address.error());
      co_return std::move(address).error().with_context(fmt::format("address of rank {}", peer));
    }
    note_address(peer, address.value());
  }
  number_hosts();
  co_return Status();
}

/// Numbers the hosts by interface address, which the ranks of a host share.
void Session::number_hosts() {
  std::map<std::string, std::uint32_t> numbers;
  std::vector<std::uint32_t> host_of;
  for (int rank = 0; rank < size_; ++rank) {
    const auto next = static_cast<std::uint32_t>(numbers.size());
    const std::string host = addresses_[rank].with_port(0).to_string();
    host_of.push_back(numbers.try_emplace(host, next).first->second);
  }
  const auto lock = peers_.lock();
  peers_.links()->set_hosts(std::move(host_of));
}

bool Session::can_link(const std::vector<int>& peers) const {
  const auto lock = peers_.lock();
  return listening_ || std::all_of(peers.begin(), peers.end(), [this](int peer) {
           return peers_.links()->find(peer) != nullptr;
         });
}

Task<Result<Group>> Session::subgroup(std::vector<int> world_ranks) {
  const auto self = std::find(world_ranks.begin(), world_ranks.end(), rank_);
  const std::set<int> distinct(world_ranks.begin(), world_ranks.end());
  const bool valid = self != world_ranks.end() && distinct.size() == world_ranks.size() &&
                     *distinct.begin() >= 0 && *distinct.rbegin() < size_;
  if (!valid) {
    co_return Error(ErrorCode::internal,
                    fmt::format("rank {} cannot form a group of ranks [{}] of {}", rank_,
                                fmt::join(world_ranks, ", "), size_));
  }
  const auto index = static_cast<int>(self - world_ranks.begin());
  std::vector<int> peers = link_neighbours(index, static_cast<int>(world_ranks.size()));
  for (int& peer : peers) peer = world_ranks[static_cast<std::size_t>(peer)];
  if (!can_link(peers)) {
    co_return Error(ErrorCode::internal, "the session has stopped listening for new links");
  }
  if (!peers.empty()) {
    Status linked = co_await transport_.link_to(std::move(peers), addresses_);
    if (!linked.ok()) co_return std::move(linked).error().with_context("connecting a subgroup");
  }
  co_return Group(transport_, std::move(world_ranks), index);
}

Result<Session::Activity> Session::activate(EventLoop& loop, Deadline deadline) {
  ORIEL_CHECK(transport_.begin(loop, deadline));
  return Activity(transport_);
}

void Session::stop_listening() {
  const auto lock = peers_.lock();
  listening_ = false;
  if (peers_.links() != nullptr) peers_.links()->acceptor().stop();
}

}  // namespace oriel::boot
