// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/bare_transfers.hpp"

#include <algorithm>

#include "net/queue/queue_records.hpp"

namespace oriel::net {
namespace {

// Host writes and reads up to this size use messages even if a mapping exists. A message saves the
// peer an access to this side's memory.
constexpr std::uint64_t kSentAnywayMost = 256;
constexpr std::uint32_t kDirectPieceBytes = std::uint32_t{1} << 20;
// libfabric's own layers send shorter payloads at once, with copies where they need them.
constexpr std::uint64_t kRendezvousLeast = std::uint64_t{16} << 10;

}  // namespace

void BareTransfers::choose(PostedWqe& entry, MemoryPlace place) const {
  entry.direct = can_copy(entry.work, place);
  entry.rendezvous = !entry.direct && can_be_read(entry.work, place);
}

/// Returns whether the bytes can be copied from a mapping. This side must have mapped the peer's
/// memory, of the same kind. For a write, the peer must have mapped the local memory too. Short
/// transfers of host memory and transfers of zero bytes are not copied.
bool BareTransfers::can_copy(const WorkRequest& work, MemoryPlace place) const {
  const bool is_write = work.kind == WorkKind::write;
  if (!is_write && work.kind != WorkKind::read) return false;
  if (place == MemoryPlace::host && work.bytes <= kSentAnywayMost) return false;
  if (work.bytes == 0) return false;
  const auto there = end_.find_mapped(work);
  if (there.syndrome != Syndrome::none || there.place != place) return false;
  return !is_write || end_.nic.peers.is_reached(end_.peer.process, work.lkey);
}

/// Returns whether the peer's NIC can read the bytes from where they are, by the wire.
bool BareTransfers::can_be_read(const WorkRequest& work, MemoryPlace place) const {
  if (work.kind != WorkKind::write || work.bytes < kRendezvousLeast || !reads_) return false;
  // A queue that can continue on another NIC could not wait for rendezvous reads in flight.
  if (place != MemoryPlace::host || end_.setup.records != nullptr) return false;
  return end_.wire().can_read(end_.peer.address);
}

/// Returns a multiple of the wire's piece size, so that the remaining pieces can go in messages.
/// Queues with records use the wire's piece size itself: another NIC may continue with the request
/// numbers.
std::uint32_t BareTransfers::piece_bytes(const PostedWqe& entry) const {
  const std::uint32_t bytes = end_.setup.piece_bytes;
  if (!entry.is_bare() || end_.setup.records != nullptr) return bytes;
  return std::max(kDirectPieceBytes / bytes, 1u) * bytes;
}

bool BareTransfers::expose(const PostedWqe& entry, SentRequest& request) {
  // Looked up again: the key may have been deregistered since the entry started.
  const auto found = end_.find_local(entry.work, false);
  if (found.syndrome != Syndrome::none) return false;
  request.source =
      end_.wire().expose(end_.peer.address, found.memory + request.offset, request.bytes);
  if (request.source.has_value()) end_.nic.exposed.expose(entry.work.lkey, end_.wire_peer());
  return request.source.has_value();
}

void BareTransfers::revoke(const PostedWqe& entry, SentRequest& request) {
  if (!request.source.has_value()) return;
  end_.wire().revoke({end_.peer.address}, *request.source);
  end_.nic.exposed.revoke(entry.work.lkey, end_.wire_peer());
  request.source.reset();
}

void BareTransfers::lose(const PostedWqe& entry, const SentRequest& request) {
  if (!request.source.has_value()) return;
  end_.wire().revoke({end_.peer.address}, *request.source);
  // A read may be in flight.
  end_.nic.exposed.lose(entry.work.lkey, end_.wire_peer());
}

void BareTransfers::note_refusal(const PostedWqe& entry, const SentRequest& request) {
  if (request.source.has_value()) {
    reads_ = false;
  } else {
    end_.nic.peers.set_reached(end_.peer.process, entry.work.lkey, false);
  }
}

bool BareTransfers::is_refused(const PostedWqe& entry) const {
  if (entry.rendezvous) return !reads_;
  return entry.direct && entry.work.kind == WorkKind::write &&
         !end_.nic.peers.is_reached(end_.peer.process, entry.work.lkey);
}

bool BareTransfers::may_be_done(std::uint64_t number, bool was_sent) const {
  return was_sent || (end_.setup.records != nullptr && number < end_.setup.records->sent);
}

bool BareTransfers::asks_only(const PostedWqe& entry, const SentRequest& request) const {
  const WorkRequest& work = entry.work;
  if (work.kind != WorkKind::write || work.is_inline || request.is_bare()) return false;
  if (!may_be_done(request.number, request.was_sent)) return false;
  return end_.find_local(work, false).syndrome != Syndrome::none;
}

}  // namespace oriel::net
