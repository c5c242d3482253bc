// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/call_notes.hpp"

#include <fmt/format.h>

#include "comm/communicator/call_text.hpp"

namespace oriel::comm {

void CallNotes::enter(PointToPointCounts counts) {
  now_.store(std::uint64_t{counts.sends} << 32 | counts.receives, std::memory_order_relaxed);
}

std::string CallNotes::point_to_point_text() const {
  const std::uint64_t now = now_.load(std::memory_order_relaxed);
  if (now == 0 || now == kCollective) return {};
  return text_of({static_cast<std::uint32_t>(now >> 32), static_cast<std::uint32_t>(now)});
}

void CallNotes::note_enqueued(const kernels::CollectiveCall& call) {
  const std::lock_guard lock(mutex_);
  ++enqueued_;
  last_is_collective_ = true;
  last_collective_ = call;
}

void CallNotes::note_enqueued(PointToPointCounts counts) {
  const std::lock_guard lock(mutex_);
  ++enqueued_;
  last_is_collective_ = false;
  last_counts_ = counts;
}

std::string CallNotes::enqueued_text() const {
  const std::lock_guard lock(mutex_);
  if (enqueued_ == 0) return {};
  return fmt::format("number {}, is {}", enqueued_,
                     last_is_collective_ ? text_of(last_collective_) : text_of(last_counts_));
}

}  // namespace oriel::comm
