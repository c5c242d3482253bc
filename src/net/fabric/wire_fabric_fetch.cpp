// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/short_memory.hpp"
#include "net/fabric/wire_fabric_state.hpp"

// What a fabric wire fetches from the memory of peers, and lends them.
namespace oriel::net {

using namespace fabric;

bool WireFabric::can_fetch(WireAddress peer) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const Peer* const other = state.find(peer);
  return other != nullptr && !other->is_cut && !other->prove_payloads && !state.is_cut &&
         state.endpoint->can_fetch();
}

std::optional<WireSource> WireFabric::lend(WireAddress peer, const std::byte* from,
                                           std::size_t bytes) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const Peer* const other = state.find(peer);
  if (other == nullptr || other->is_cut || state.is_cut) return std::nullopt;
  auto memory = state.endpoint->register_for(FI_REMOTE_READ, from, bytes);
  if (!memory.ok()) return std::nullopt;
  const bool is_virtual = (state.endpoint->info().domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  const WireSource source{state.table.fi_mr_key(memory.value().get()),
                          is_virtual ? reinterpret_cast<std::uint64_t>(from) : 0};
  state.lent.insert_or_assign(source.key, Lent{std::move(memory).value(), peer});
  return source;
}

void WireFabric::take_back(WireAddress peer, const WireSource& source) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->lent.find(source.key);
  // Of a peer that was cut it was taken back before, and a provider may have used the key again.
  if (found != state_->lent.end() && found->second.to == peer) state_->lent.erase(found);
}

std::shared_ptr<WireFetch> WireFabric::fetch(WireAddress peer, const WireSource& source,
                                             const WireTarget& target) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  auto whole = std::make_shared<WireFetch>(target);
  Fetching made{whole, state.find(peer), source};
  bool fails = made.peer == nullptr || made.peer->is_cut || state.is_cut;
  if (!fails && state.endpoint->needs_memory()) {
    auto landing = state.endpoint->register_for(FI_READ, target.to, target.bytes);
    if (landing.ok())
      made.landing = std::move(landing).value();
    else
      fails = true;
  }
  if (fails) {
    whole->end(true);
    return whole;
  }
  state.fetching.push_back(std::move(made));
  state.begin_fetches();
  return whole;
}

bool WireFabric::is_fetching(std::uint32_t key) {
  const std::lock_guard lock(state_->mutex);
  return std::any_of(state_->fetching.begin(), state_->fetching.end(),
                     [&](const Fetching& one) { return one.whole->key() == key; });
}

std::vector<WireAddress> WireFabric::fetches_by(std::uint32_t key) {
  const std::lock_guard lock(state_->mutex);
  std::vector<WireAddress> whom;
  for (const auto& [id, peer] : state_->peers) {
    const auto is_it = [&, from = peer.get()](const Fetching& one) {
      return one.peer == from && one.whole->key() == key;
    };
    if (std::any_of(state_->fetching.begin(), state_->fetching.end(), is_it)) whom.push_back({id});
  }
  return whom;
}

bool WireFabric::cut(std::span<const WireAddress> peers) {
  const std::lock_guard lock(state_->mutex);
  std::vector<Peer*> whom;
  despite_short_memory([&] { whom.reserve(peers.size()); });
  for (const WireAddress& peer : peers) {
    Peer* const found = state_->find(peer);
    // Not a second time: all others would lose once more what is on its way.
    if (found != nullptr && !found->is_cut) whom.push_back(found);
  }
  if (!whom.empty()) state_->cut(whom);
  return state_->is_cut;
}

/// Only with its endpoint does all end for certain that is under way between this end and a peer.
/// So that is ended, once for all who are to go, and made anew for the others.
void WireFabric::State::cut(const std::vector<Peer*>& whom) {
  if (is_cut) return;
  // What needs memory comes first: memory that is lent is not given back without this.
  std::vector<bool> is_free;
  despite_short_memory([&] { is_free.assign(receives.size(), true); });
  for (Peer* const peer : whom) {
    peer->error = despite_short_memory([&] {
      return Error(ErrorCode::timeout,
                   "memory had to be given back that it did not let go of: the wire to " +
                       peer->name + " was cut");
    });
    peer->is_cut = true;
  }
  const bool is_closed = endpoint->close(true);
  for (Fetching& one : fetching) one.whole->end(true);
  fetching.clear();
  free_parts.clear();
  for (std::uint32_t i = 0; i < fetch_parts.size(); ++i) free_parts.push_back(i);
  std::erase_if(lent, [&](const auto& one) { return find(one.second.to)->is_cut; });
  forget_sends();
  for (const auto& [id, peer] : peers) {
    peer->fetches = 0;
    peer->blocked_since.reset();
    if (peer->is_cut) forget_received(*peer);
  }
  Status opened;
  if (is_closed) {
    drain_completions();
    opened = endpoint->reopen(own.address);
  } else {
    opened = despite_short_memory(
        [] { return Error(ErrorCode::system, "libfabric's connections could not be ended"); });
  }
  if (!opened.ok()) {
    is_cut = true;
    arrived.clear();
    return note(std::move(opened).error().with_context(
        "memory had to be given back that a peer did not let go of: the wire was cut"));
  }
  for (const Arrived& one : arrived) is_free[one.buffer] = false;
  for (const auto& [id, peer] : peers) {
    for (const auto& [sequence, one] : peer->early) is_free[one.buffer] = false;
  }
  posted = 0;
  unposted.clear();
  for (std::uint32_t i = 0; i < receives.size(); ++i) {
    if (is_free[i]) post(i);
  }
}

/// What is on its way is lost; what waits for more to go with it still goes.
void WireFabric::State::forget_sends() {
  for (Send& send : sends) {
    Peer* const peer = send.peer;
    if (peer == nullptr) continue;
    const bool waits = peer->batch == &send;
    if (waits && !peer->is_cut) continue;
    if (waits) {
      peer->batch = nullptr;
      std::erase(with_batch, peer);
    }
    counters.lost += send.messages;
    complete_send(send);
  }
}

void WireFabric::State::forget_received(Peer& peer) {
  std::erase_if(arrived, [&](const Arrived& one) { return one.peer == &peer; });
  if (!peer.early.empty()) --waiting_peers;
  peer.early.clear();
}

/// Of an endpoint that is closed.
void WireFabric::State::drain_completions() {
  for (std::size_t left = receives.size() + sends.size() + fetch_parts.size() + 1; left > 0;
       --left) {
    fi_cq_msg_entry entry{};
    const ssize_t count = table.fi_cq_read(endpoint->completions(), &entry, 1);
    fi_cq_err_entry failed{};
    if (count == -FI_EAVAIL) {
      if (table.fi_cq_readerr(endpoint->completions(), &failed, 0) < 0) return;
    } else if (count <= 0) {
      return;
    }
  }
}

/// Of one peer no more parts than are left for others, and as few as its link is slow.
bool WireFabric::State::may_fetch(Peer& peer, TimePoint now) const {
  if (free_parts.empty() || peer.fetches >= std::max<std::size_t>(2, free_parts.size())) {
    return false;
  }
  if (peer.fetches == 0) {
    peer.fetching_since = now;
  } else if (now - peer.fetching_since >= kFetchGapEvery) {
    return false;
  }
  return peer.fetch_window.has_room(peer.fetches * kFetchPartBytes, kFetchPartBytes);
}

/// As far as there are parts.
void WireFabric::State::begin_fetches() {
  const TimePoint now = options.clock->now();
  for (auto it = fetching.begin(); it != fetching.end() && !free_parts.empty();) {
    const auto next = std::next(it);
    while (may_fetch(*it->peer, now) && begin_part(*it, now)) {
      fetch_parts[free_parts.back()].of = it;
      free_parts.pop_back();
    }
    if (it->parts == 0 && it->failed) end_fetch(it);
    it = next;
  }
}

// False if there is nothing to begin, or libfabric has no room now.
bool WireFabric::State::begin_part(Fetching& one, TimePoint now) {
  const std::size_t left = one.whole->bytes() - one.begun;
  if (left == 0 || one.failed) return false;
  const std::size_t bytes = std::min(left, kFetchPartBytes);
  void* const descriptor =
      one.landing.get() != nullptr ? table.fi_mr_desc(one.landing.get()) : nullptr;
  const ssize_t status =
      table.fi_read(endpoint->endpoint(), one.whole->to() + one.begun, bytes, descriptor,
                    one.peer->where, one.source.address + one.begun, one.source.key,
                    &fetch_parts[free_parts.back()].operation.context);
  if (status == -FI_EAGAIN) return false;
  if (status != 0) {
    one.peer->error = fabric_error(table, "fi_read", status)
                          .with_context(fmt::format("fetching from {}", one.peer->name));
    one.failed = true;
    return false;
  }
  fetch_parts[free_parts.back()].begun = now;
  fetch_parts[free_parts.back()].bytes = bytes;
  one.begun += bytes;
  ++one.parts;
  ++one.peer->fetches;
  return true;
}

void WireFabric::State::complete_part(std::uint32_t index, bool failed) {
  const FetchPart& part = fetch_parts[index];
  const auto it = part.of;
  if (!failed) {
    Peer& peer = *it->peer;
    const TimePoint now = options.clock->now();
    peer.sign.heard = now;
    peer.fetch_window.ended(peer.fetches * kFetchPartBytes, part.bytes, part.begun, now);
  }
  free_parts.push_back(index);
  --it->parts;
  --it->peer->fetches;
  it->failed = it->failed || failed;
  const bool is_over = it->failed || it->begun == it->whole->bytes();
  if (it->parts == 0 && is_over) end_fetch(it);
}

void WireFabric::State::end_fetch(std::list<Fetching>::iterator which) {
  if (!which->failed) ++counters.fetched;
  which->whole->end(which->failed);
  fetching.erase(which);
}

}  // namespace oriel::net
