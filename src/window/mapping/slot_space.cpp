// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/mapping/slot_space.hpp"

#include <algorithm>
#include <new>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "window/memory/memory_block.hpp"

namespace oriel::window {
SlotSpace::SlotSpace(std::size_t slot_bytes, std::size_t granularity)
    : slot_bytes_(slot_bytes), granularity_(granularity) {}

/// Returns the lowest place at or after `floor` that touches no kept range (first fit). An eager
/// pass also avoids proposals of lower tokens. Returns slot_bytes_ if there is no place.
std::size_t SlotSpace::first_free(Token token, std::size_t bytes, std::size_t floor,
                                  Pass pass) const {
  const std::size_t alignment =
      bytes >= kHugePageBytes ? std::max(granularity_, kHugePageBytes) : granularity_;
  std::size_t begin = round_up(floor, alignment);
  while (begin <= slot_bytes_ && bytes <= slot_bytes_ - begin) {
    std::size_t blocked_until = 0;
    const auto next = taken_.lower_bound(begin);
    if (next != taken_.begin() && std::prev(next)->second.end > begin) {
      blocked_until = std::prev(next)->second.end;
    } else if (next != taken_.end() && next->first < begin + bytes) {
      blocked_until = next->second.end;
    }
    if (pass == Pass::eager) {
      for (auto at = holds_.begin(); at != holds_.end() && at->first < token; ++at) {
        const Range& range = at->second.range;
        if (range.overlaps(begin, begin + bytes)) {
          blocked_until = std::max(blocked_until, range.end);
        }
      }
    }
    if (blocked_until == 0) return begin;
    begin = round_up(blocked_until, alignment);
  }
  return slot_bytes_;
}

/// Returns whether a lower token is at the place in any way, or a higher one holds it.
bool SlotSpace::must_wait(Token token, std::size_t begin, std::size_t end) const {
  return std::any_of(holds_.begin(), holds_.end(), [&](const auto& entry) {
    const auto& [other, hold] = entry;
    return other != token && (other < token || !hold.waits) && hold.range.overlaps(begin, end);
  });
}

Result<SlotSpace::Proposal> SlotSpace::propose(Token token, std::size_t bytes, std::size_t floor,
                                               Pass pass) {
  if (bytes == 0 || bytes > slot_bytes_ || floor > slot_bytes_) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("a window of {} bytes at or after offset {:#x} does not fit into a "
                             "slot, which has {} bytes",
                             bytes, floor, slot_bytes_))
        .with_hint("raise ORIEL_BIG_SIZE");
  }
  const std::size_t rounded = round_up(bytes, granularity_);
  const std::lock_guard lock(mutex_);
  if (kept_.contains(token)) {
    return Error(
        ErrorCode::internal,
        fmt::format("a place is proposed anew for agreement {} of communicator {:#x}, which "
                    "has ended",
                    token.sequence, token.communicator));
  }
  const std::size_t begin = first_free(token, rounded, floor, pass);
  if (begin >= slot_bytes_) {
    holds_.erase(token);
    return Proposal{};
  }
  const bool waits = must_wait(token, begin, begin + rounded);
  holds_.insert_or_assign(token, Hold{{begin, begin + rounded}, waits});
  return Proposal{waits ? Proposal::Kind::waits : Proposal::Kind::held, begin};
}

Error SlotSpace::out_of_space(std::size_t bytes) const {
  return Error(ErrorCode::invalid_usage,
               fmt::format("no {} bytes are free at one offset of all slots: {} of the {} bytes of "
                           "this rank's side are taken",
                           round_up(bytes, granularity_), taken_bytes(), slot_bytes_))
      .with_hint("deregister windows, or raise ORIEL_BIG_SIZE");
}

Status SlotSpace::keep(Token token) {
  const std::lock_guard lock(mutex_);
  const auto held = holds_.find(token);
  if (held != holds_.end() && !held->second.waits) {
    kept_.emplace(token, held->second.range);
    holds_.erase(held);
  }
  const auto found = kept_.find(token);
  if (found == kept_.end()) {
    return Error(ErrorCode::internal,
                 fmt::format("agreement {} of communicator {:#x} holds no place in the slot",
                             token.sequence, token.communicator));
  }
  count(found->second.begin, found->second.end, +1);
  return {};
}

void SlotSpace::drop(Token token) {
  const std::lock_guard lock(mutex_);
  holds_.erase(token);
}

void SlotSpace::release(std::size_t offset, std::size_t bytes) noexcept {
  const std::size_t begin = round_down(offset, granularity_);
  const std::size_t end = round_up(offset + bytes, granularity_);
  const std::lock_guard lock(mutex_);
  std::erase_if(kept_, [&](const auto& entry) { return entry.second.overlaps(begin, end); });
  try {
    count(begin, end, -1);
  } catch (const std::bad_alloc&) {  // destructors call this; the range stays taken
  }
}

std::size_t SlotSpace::taken_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [begin, range] : taken_) bytes += range.end - begin;
  return bytes;
}

/// Changes the number of keepers of [begin, end) by one. A range without keepers is free;
/// decrementing a free range has no effect.
void SlotSpace::count(std::size_t begin, std::size_t end, int change) {
  split_at(begin);
  split_at(end);
  std::size_t covered = begin;
  for (auto at = taken_.lower_bound(begin); at != taken_.end() && at->first < end;) {
    if (change > 0 && covered < at->first) add_taken(covered, {at->first, change});
    covered = at->second.end;
    at->second.keepers += change;
    at = at->second.keepers == 0 ? taken_.erase(at) : std::next(at);
  }
  if (change > 0 && covered < end) add_taken(covered, {end, change});
  join_around(begin, end);
}

void SlotSpace::split_at(std::size_t offset) {
  auto at = taken_.lower_bound(offset);
  if (at == taken_.begin()) return;
  --at;
  if (at->second.end <= offset) return;
  add_taken(offset, at->second);
  at->second.end = offset;
}

void SlotSpace::add_taken(std::size_t begin, Taken range) {
  taken_.emplace(begin, range);
}

/// Joins neighbours with equal counts, so that the map's size depends on the gaps, not on the
/// windows.
void SlotSpace::join_around(std::size_t begin, std::size_t end) {
  auto at = taken_.lower_bound(begin);
  if (at != taken_.begin()) --at;
  while (at != taken_.end() && at->first <= end) {
    const auto next = std::next(at);
    if (next != taken_.end() && next->first == at->second.end &&
        next->second.keepers == at->second.keepers) {
      at->second.end = next->second.end;
      taken_.erase(next);
    } else {
      at = next;
    }
  }
}

}  // namespace oriel::window
