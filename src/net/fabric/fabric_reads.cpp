// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_reads.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace oriel::net::fabric {
namespace {

constexpr std::size_t kReadPartBytes = std::size_t{128} << 10;
/// Longest run of reads from one peer without a gap. Providers send the data that is read from a
/// peer before the peer's own requests. So without gaps that peer could request nothing.
constexpr std::chrono::milliseconds kReadGapEvery{250};

}  // namespace

void Reads::open() {
  parts_.resize(kReadPartsMost);
  for (std::uint32_t i = 0; i < kReadPartsMost; ++i) {
    parts_[i].operation.kind = Operation::Kind::rendezvous_read;
    parts_[i].operation.index = i;
  }
  free_parts();
}

void Reads::free_parts() {
  free_.clear();
  for (std::uint32_t i = 0; i < parts_.size(); ++i) free_.push_back(i);
}

std::shared_ptr<RendezvousRead> Reads::rendezvous_read(Peer* peer, const WireSource& source,
                                                       const WireTarget& target) {
  auto whole = std::make_shared<RendezvousRead>(target);
  PendingRead made{whole, peer, source};
  bool fails = peer == nullptr;
  if (!fails && end_.endpoint->needs_memory()) {
    auto landing = end_.endpoint->register_for(FI_READ, target.to, target.bytes);
    if (landing.ok())
      made.landing = std::move(landing).value();
    else
      fails = true;
  }
  if (fails) {
    whole->end(true);
    return whole;
  }
  pending_read_.push_back(std::move(made));
  begin();
  return whole;
}

/// Returns whether one more part may be read. The limits are the free parts, of which half are left
/// to other peers, the gap that is due, and the peer's congestion window.
bool Reads::may_read(Peer& peer, TimePoint now) const {
  Peer::Reads& reads = peer.reads;
  if (free_.empty() || reads.parts >= std::max<std::size_t>(2, free_.size())) return false;
  if (reads.parts == 0) {
    reads.since = now;
  } else if (now - reads.since >= kReadGapEvery) {
    return false;
  }
  return reads.window.allows(reads.parts * kReadPartBytes, kReadPartBytes);
}

void Reads::begin() {
  const TimePoint now = end_.now();
  for (auto it = pending_read_.begin(); it != pending_read_.end() && !free_.empty();) {
    const auto next = std::next(it);
    while (may_read(*it->peer, now) && begin_part(*it, now)) {
      parts_[free_.back()].of = it;
      free_.pop_back();
    }
    if (it->parts == 0 && it->failed) end_read(it);
    it = next;
  }
}

// Starts the next part. Returns false if there is nothing to start, or libfabric has no room now.
bool Reads::begin_part(PendingRead& one, TimePoint now) {
  const std::size_t left = one.whole->bytes() - one.started;
  if (left == 0 || one.failed) return false;
  const std::size_t bytes = std::min(left, kReadPartBytes);
  void* const descriptor =
      one.landing.get() != nullptr ? end_.table.fi_mr_desc(one.landing.get()) : nullptr;
  Part& part = parts_[free_.back()];
  const ssize_t status = end_.table.fi_read(
      end_.endpoint->endpoint(), one.whole->to() + one.started, bytes, descriptor, one.peer->where,
      one.source.address + one.started, one.source.key, &part.operation.context);
  if (status == -FI_EAGAIN) return false;
  if (status != 0) {
    one.peer->error = fabric_error(end_.table, "fi_read", status)
                          .with_context(fmt::format("reading from {}", one.peer->name));
    one.failed = true;
    return false;
  }
  part.started = now;
  part.bytes = bytes;
  one.started += bytes;
  ++one.parts;
  ++one.peer->reads.parts;
  return true;
}

void Reads::complete(std::uint32_t index) {
  const Part& part = parts_[index];
  Peer& peer = *part.of->peer;
  const TimePoint now = end_.now();
  peer.sign.last_received = now;
  peer.reads.window.ended(peer.reads.parts * kReadPartBytes, part.bytes, part.started, now);
  end_part(index, false);
}

void Reads::fail(std::uint32_t index, Error failed) {
  Peer& peer = *parts_[index].of->peer;
  peer.error = std::move(failed).with_context(fmt::format("reading from {}", peer.name));
  end_part(index, true);
}

void Reads::end_part(std::uint32_t index, bool failed) {
  const auto it = parts_[index].of;
  free_.push_back(index);
  --it->parts;
  --it->peer->reads.parts;
  it->failed = it->failed || failed;
  const bool is_over = it->failed || it->started == it->whole->bytes();
  if (it->parts == 0 && is_over) end_read(it);
}

void Reads::end_read(std::list<PendingRead>::iterator which) {
  which->whole->end(which->failed);
  pending_read_.erase(which);
}

std::optional<WireSource> Reads::expose(const Peer& peer, const std::byte* from,
                                        std::size_t bytes) {
  auto memory = end_.endpoint->register_for(FI_REMOTE_READ, from, bytes);
  if (!memory.ok()) return std::nullopt;
  const bool is_virtual = (end_.endpoint->info().domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  const WireSource source{end_.table.fi_mr_key(memory.value().get()),
                          is_virtual ? reinterpret_cast<std::uint64_t>(from) : 0};
  exposed_.insert_or_assign(source.key, Exposed{std::move(memory).value(), peer.address});
  return source;
}

void Reads::revoke(WireAddress peer, const WireSource& source) {
  const auto found = exposed_.find(source.key);
  // The memory of a peer that was cut is already deregistered, and the provider may have reused its
  // key.
  if (found != exposed_.end() && found->second.to == peer) exposed_.erase(found);
}

void Reads::cut() {
  for (PendingRead& one : pending_read_) one.whole->end(true);
  pending_read_.clear();
  free_parts();
  end_.peers.for_each([](Peer& peer) { peer.reads.parts = 0; });
  std::erase_if(exposed_, [&](const auto& one) { return end_.peers.find(one.second.to)->is_cut; });
}

void Reads::drop() {
  pending_read_.clear();
  exposed_.clear();
}

bool Reads::is_reading(std::uint32_t key) const {
  return std::any_of(pending_read_.begin(), pending_read_.end(),
                     [&](const PendingRead& one) { return one.whole->key() == key; });
}

bool Reads::is_reading(std::uint32_t key, const Peer& from) const {
  return std::any_of(pending_read_.begin(), pending_read_.end(), [&](const PendingRead& one) {
    return one.peer == &from && one.whole->key() == key;
  });
}

}  // namespace oriel::net::fabric
