// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/zero_copy_transfers.hpp"

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

void ZeroCopyTransfers::choose(PostedWqe& wqe, MemoryPlace place) const {
  wqe.direct = can_copy(wqe.work, place);
  wqe.rendezvous = !wqe.direct && can_be_read(wqe.work, place);
}

/// Returns whether the bytes can be copied from a mapping. This side must have mapped the peer's
/// memory, of the same kind. For a write, the peer must have mapped the local memory too. Short
/// transfers of host memory and transfers of zero bytes are not copied.
bool ZeroCopyTransfers::can_copy(const WorkRequest& work, MemoryPlace place) const {
  const bool is_write = work.kind == WorkKind::write;
  if (!is_write && work.kind != WorkKind::read) return false;
  if (place == MemoryPlace::host && work.bytes <= kSentAnywayMost) return false;
  if (work.bytes == 0) return false;
  const auto there = end_.find_mapped(work);
  if (there.syndrome != Syndrome::none || there.place != place) return false;
  return !is_write || end_.nic.peers.is_reached(end_.peer.process, work.lkey);
}

/// Returns whether the peer's NIC can read the bytes from where they are, by the wire.
bool ZeroCopyTransfers::can_be_read(const WorkRequest& work, MemoryPlace place) const {
  if (work.kind != WorkKind::write || work.bytes < kRendezvousLeast || !reads_) return false;
  // A queue that can continue on another NIC could not wait for rendezvous reads in flight.
  if (place != MemoryPlace::host || end_.setup.records != nullptr) return false;
  return end_.wire().can_read(end_.peer.address);
}

/// Returns a multiple of the wire's piece size, so that the remaining pieces can go in messages.
/// Queues with records use the wire's piece size itself: another NIC may continue with the request
/// numbers.
std::uint32_t ZeroCopyTransfers::piece_bytes(const PostedWqe& wqe) const {
  const std::uint32_t bytes = end_.setup.piece_bytes;
  if (!wqe.is_zero_copy() || end_.setup.records != nullptr) return bytes;
  return std::max(kDirectPieceBytes / bytes, 1u) * bytes;
}

bool ZeroCopyTransfers::expose(const PostedWqe& wqe, SentRequest& request) {
  // Looked up again: the key may have been deregistered since the WQE started.
  const auto found = end_.find_local(wqe.work, false);
  if (found.syndrome != Syndrome::none) return false;
  request.source =
      end_.wire().expose(end_.peer.address, found.memory + request.offset, request.bytes);
  if (request.source.has_value()) end_.nic.exposed.expose(wqe.work.lkey, end_.wire_peer());
  return request.source.has_value();
}

void ZeroCopyTransfers::revoke(const PostedWqe& wqe, SentRequest& request) {
  if (!request.source.has_value()) return;
  end_.wire().revoke({end_.peer.address}, *request.source);
  end_.nic.exposed.revoke(wqe.work.lkey, end_.wire_peer());
  request.source.reset();
}

void ZeroCopyTransfers::lose(const PostedWqe& wqe, const SentRequest& request) {
  if (!request.source.has_value()) return;
  end_.wire().revoke({end_.peer.address}, *request.source);
  // A read may be in flight.
  end_.nic.exposed.lose(wqe.work.lkey, end_.wire_peer());
}

void ZeroCopyTransfers::note_refusal(const PostedWqe& wqe, const SentRequest& request) {
  if (request.source.has_value()) {
    reads_ = false;
  } else {
    end_.nic.peers.set_reached(end_.peer.process, wqe.work.lkey, false);
  }
}

bool ZeroCopyTransfers::is_refused(const PostedWqe& wqe) const {
  if (wqe.rendezvous) return !reads_;
  return wqe.direct && wqe.work.kind == WorkKind::write &&
         !end_.nic.peers.is_reached(end_.peer.process, wqe.work.lkey);
}

bool ZeroCopyTransfers::may_be_done(std::uint64_t number, bool was_sent) const {
  return was_sent || (end_.setup.records != nullptr && number < end_.setup.records->sent);
}

bool ZeroCopyTransfers::asks_only(const PostedWqe& wqe, const SentRequest& request) const {
  const WorkRequest& work = wqe.work;
  if (work.kind != WorkKind::write || work.is_inline || request.is_zero_copy()) return false;
  if (!may_be_done(request.number, request.was_sent)) return false;
  return end_.find_local(work, false).syndrome != Syndrome::none;
}

}  // namespace oriel::net
