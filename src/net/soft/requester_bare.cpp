// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/short_memory.hpp"
#include "net/queue/queue_records.hpp"
#include "net/soft/requester.hpp"

// Transfers whose bytes are in no message: copied from a mapping, or fetched by the peer's wire.
namespace oriel::net {
namespace {

// Bytes of the host that need no wire are still sent if there are no more of them: the peer then
// has them in the message, instead of having to fetch them from this side's memory.
constexpr std::uint64_t kSentAnywayMost = 256;
constexpr std::uint32_t kDirectPieceBytes = std::uint32_t{1} << 20;
// What is shorter libfabric's own layers send at once, whatever they have to copy for it.
constexpr std::uint64_t kFetchedLeast = std::uint64_t{16} << 10;

}  // namespace

/// A multiple of what the wire carries, so that what is left can go there; the same where another
/// NIC, which may have to send it, goes on with the numbers.
std::uint32_t Requester::bare_piece_bytes() const {
  if (setup_.records != nullptr) return setup_.piece_bytes;
  return std::max(kDirectPieceBytes / setup_.piece_bytes, 1u) * setup_.piece_bytes;
}

/// Both sides have mapped the other's memory, and it is of one kind.
bool Requester::can_go_directly(const WorkRequest& work, MemoryPlace place) const {
  const bool is_write = work.kind == WorkKind::write;
  if (!is_write && work.kind != WorkKind::read) return false;
  if (place == MemoryPlace::host && work.bytes <= kSentAnywayMost) return false;
  if (work.bytes == 0 || nic_.faults.late_reads != Duration::zero()) return false;
  const auto there =
      nic_.peers.find(peer_.process, work.remote_key, work.remote_address, work.bytes);
  if (there.syndrome != Syndrome::none || there.place != place) return false;
  return !is_write || nic_.peers.is_reached(peer_.process, work.local_key);
}

/// The peer's NIC can have the bytes from where they are, by the wire.
bool Requester::can_be_fetched(const WorkRequest& work, MemoryPlace place) const {
  if (work.kind != WorkKind::write || work.bytes < kFetchedLeast || !fetches_) return false;
  // A queue that goes on elsewhere could not wait for what is still being fetched for it.
  if (place != MemoryPlace::host || setup_.records != nullptr) return false;
  return nic_.wires[peer_.wire]->can_fetch(peer_.address);
}

/// Whether the peer may have done what the request with this number asks for.
bool Requester::may_be_done(std::uint64_t number, bool was_sent) const {
  return was_sent || (setup_.records != nullptr && number < setup_.records->sent);
}

/// Of a repetition whose bytes are gone since their key was given back. The window of a collective
/// that has ended may go although answers were lost: what it sent has been done, so the peer only
/// has to say so. Such a request goes as a direct one, for which a peer that has not done it finds
/// no memory, and does nothing.
bool Requester::asks_only(const Sent& sent) {
  const WorkRequest& work = active(sent.serial).work;
  if (!may_be_done(sent.number, sent.was_sent) || work.kind != WorkKind::write) return false;
  if (work.is_inline || sent.direct || sent.source.has_value()) return false;
  return nic_.keys.find_local(setup_.domain, work.local_key, work.local_address, work.bytes, false)
             .syndrome != Syndrome::none;
}

/// False if the bytes have to go in messages.
bool Requester::lend(const Active& entry, Sent& sent) {
  const WorkRequest& work = entry.work;
  // Looked up again: the key may have been given back since the entry began.
  const auto found =
      nic_.keys.find_local(setup_.domain, work.local_key, work.local_address, work.bytes, false);
  if (found.syndrome != Syndrome::none) return false;
  despite_short_memory([&] {
    sent.source =
        nic_.wires[peer_.wire]->lend(peer_.address, found.memory + sent.offset, sent.bytes);
  });
  if (sent.source.has_value()) {
    despite_short_memory([&] { nic_.lent.lend(work.local_key, borrower()); });
  }
  return sent.source.has_value();
}

void Requester::take_back(Sent& sent) {
  if (!sent.source.has_value()) return;
  nic_.wires[peer_.wire]->take_back({peer_.address}, *sent.source);
  nic_.lent.take_back(active(sent.serial).work.local_key, borrower());
  sent.source.reset();
}

/// Nobody will hear of the answers to come.
void Requester::forget_sent() {
  for (const Sent& sent : sent_) {
    if (!sent.source.has_value()) continue;
    nic_.wires[peer_.wire]->take_back({peer_.address}, *sent.source);
    // Some of it may be on its way.
    nic_.lent.lose(active(sent.serial).work.local_key, borrower());
  }
  sent_.clear();
  under_way_ = 0;
}

/// So that their memory is not kept for peers that will never be asked to fetch it.
void Requester::forget_unsent() {
  while (!sent_.empty() && !sent_.back().was_sent) {
    take_back(sent_.back());
    under_way_ -= sent_.back().wire_bytes;
    sent_.pop_back();
  }
}

/// What this request and those behind it ask for was not accepted: they are taken back, and go out
/// again under the numbers from its own on, with their bytes.
void Requester::go_by_wire(std::size_t position) {
  const Sent& refused = sent_[position];
  // Of a repetition, if it has been taken back already.
  const bool is_fetched = refused.source.has_value();
  const bool is_bare = refused.direct || is_fetched;
  if (!is_bare || active(refused.serial).work.kind != WorkKind::write) return;
  const auto behind = sent_.begin() + static_cast<std::ptrdiff_t>(position);
  if (std::any_of(behind, sent_.end(), [](const Sent& sent) { return sent.answered; })) {
    return stop_at(active(refused.serial), Syndrome::remote_operation, Complaint::none);
  }
  ++nic_.counters.unmapped;
  if (is_fetched) {
    fetches_ = false;
  } else {
    nic_.peers.set_reached(peer_.process, active(refused.serial).work.local_key, false);
  }
  next_number_ = refused.number;
  // Nor has any other NIC been heard with it.
  if (setup_.records != nullptr) setup_.records->sent = next_number_;
  next_ = refused.serial - first_serial_;
  for (; sent_.size() > position; sent_.pop_back()) {
    take_back(sent_.back());
    under_way_ -= sent_.back().wire_bytes;
    --active(sent_.back().serial).sent;
  }
  for (std::size_t i = next_; i < active_.size() && active_[i].begun; ++i) {
    const WorkRequest& work = active_[i].work;
    const bool is_put = active_[i].direct && work.kind == WorkKind::write;
    const bool is_unmapped = is_put && !nic_.peers.is_reached(peer_.process, work.local_key);
    if (is_unmapped || (active_[i].fetched && !fetches_)) {
      despite_short_memory([&] { cut_for_wire(active_[i]); });
    }
  }
}

void Requester::cut_for_wire(Active& entry) const {
  const std::uint64_t each = entry.piece_bytes / setup_.piece_bytes;
  const std::uint64_t all = (entry.work.bytes + setup_.piece_bytes - 1) / setup_.piece_bytes;
  std::vector<std::uint32_t> order(entry.sent);  // those have their places
  for (std::uint32_t i = entry.sent; i < entry.pieces; ++i) {
    const std::uint64_t first = (entry.order.empty() ? i : entry.order[i]) * each;
    for (std::uint64_t piece = first; piece < std::min(first + each, all); ++piece) {
      order.push_back(static_cast<std::uint32_t>(piece));
    }
  }
  entry.order = std::move(order);
  entry.pieces = static_cast<std::uint32_t>(entry.order.size());
  entry.piece_bytes = setup_.piece_bytes;
  entry.direct = false;
  entry.fetched = false;
}

}  // namespace oriel::net
