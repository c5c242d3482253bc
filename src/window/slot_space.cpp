// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "window/flat_space.hpp"
#include "window/memory_block.hpp"

namespace oriel::window {
SlotSpace::SlotSpace(std::size_t slot_bytes, std::size_t granularity)
    : slot_bytes_(slot_bytes), granularity_(granularity) {}

/// First fit: the lowest place at or after `floor` that neither a kept range nor another token's
/// hold touches; slot_bytes_ if there is none.
std::size_t SlotSpace::first_free(Token token, std::size_t bytes, std::size_t floor) const {
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
    for (const auto& [other, hold] : tokens_) {
      if (other != token && !hold.kept && hold.begin < begin + bytes && hold.end > begin) {
        blocked_until = std::max(blocked_until, hold.end);
      }
    }
    if (blocked_until == 0) return begin;
    begin = round_up(blocked_until, alignment);
  }
  return slot_bytes_;
}

Result<std::size_t> SlotSpace::propose(Token token, std::size_t bytes, std::size_t floor) {
  if (bytes == 0 || bytes > slot_bytes_ || floor > slot_bytes_) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("a place for {} bytes at or after offset {:#x} in a slot of "
                             "{} bytes",
                             bytes, floor, slot_bytes_))
        .with_hint("raise ORIEL_BIG_SIZE");
  }
  const std::size_t rounded = round_up(bytes, granularity_);
  const std::lock_guard lock(mutex_);
  const auto found = tokens_.find(token);
  if (found != tokens_.end() && found->second.kept) {
    return Error(
        ErrorCode::internal,
        fmt::format("a place is proposed anew for agreement {} of communicator {:#x}, which "
                    "has ended",
                    token.sequence, token.communicator));
  }
  const std::size_t begin = first_free(token, rounded, floor);
  if (begin >= slot_bytes_) {
    std::size_t taken = 0;
    for (const auto& [first, range] : taken_) taken += range.end - first;
    return Error(ErrorCode::invalid_usage,
                 fmt::format("no {} bytes are free at or after offset {:#x} of the slot: "
                             "{} of its {} bytes are taken",
                             rounded, floor, taken, slot_bytes_))
        .with_hint("deregister windows, or raise ORIEL_BIG_SIZE");
  }
  tokens_.insert_or_assign(token, Hold{begin, begin + rounded, false});
  return begin;
}

Status SlotSpace::keep(Token token) {
  const std::lock_guard lock(mutex_);
  const auto found = tokens_.find(token);
  if (found == tokens_.end()) {
    return Error(ErrorCode::internal,
                 fmt::format("agreement {} of communicator {:#x} holds no place in the slot",
                             token.sequence, token.communicator));
  }
  found->second.kept = true;
  count(found->second.begin, found->second.end, +1);
  return {};
}

void SlotSpace::drop(Token token) {
  const std::lock_guard lock(mutex_);
  const auto found = tokens_.find(token);
  if (found != tokens_.end() && !found->second.kept) tokens_.erase(found);
}

void SlotSpace::release(std::size_t offset, std::size_t bytes) {
  const std::size_t begin = offset / granularity_ * granularity_;
  const std::size_t end = round_up(offset + bytes, granularity_);
  const std::lock_guard lock(mutex_);
  std::erase_if(tokens_, [&](const auto& entry) {
    return entry.second.kept && entry.second.begin < end && entry.second.end > begin;
  });
  count(begin, end, -1);
}

std::size_t SlotSpace::taken_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [begin, range] : taken_) bytes += range.end - begin;
  return bytes;
}

std::size_t SlotSpace::held_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [token, hold] : tokens_) {
    if (!hold.kept) bytes += hold.end - hold.begin;
  }
  return bytes;
}

/// Changes the number of keepers of [begin, end) by one. What has none is free; taking one away
/// from what is free has no effect.
void SlotSpace::count(std::size_t begin, std::size_t end, int change) {
  split_at(begin);
  split_at(end);
  std::size_t covered = begin;
  for (auto at = taken_.lower_bound(begin); at != taken_.end() && at->first < end;) {
    if (change > 0 && covered < at->first)
      taken_.emplace_hint(at, covered, Taken{at->first, change});
    covered = at->second.end;
    at->second.keepers += change;
    at = at->second.keepers == 0 ? taken_.erase(at) : std::next(at);
  }
  if (change > 0 && covered < end) taken_.emplace(covered, Taken{end, change});
  join_around(begin, end);
}

void SlotSpace::split_at(std::size_t offset) {
  auto at = taken_.lower_bound(offset);
  if (at == taken_.begin()) return;
  --at;
  if (at->second.end <= offset) return;
  taken_.emplace_hint(std::next(at), offset, Taken{at->second.end, at->second.keepers});
  at->second.end = offset;
}

/// Joins neighbours with equal counts, so that the map grows with the holes, not with the windows.
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
