// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/staging_slots.hpp"

#include <algorithm>

namespace oriel::net {

StagingSlots::StagingSlots(std::uint32_t slots)
    : loaded_most_(slots - slots / 3), kept_most_(loaded_most_ / 2) {
  for (std::uint32_t slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
}

std::optional<std::uint32_t> StagingSlots::take(MoveTicket done) {
  while (!busy_.empty() && busy_.front().until <= done) {
    free_.push_back(busy_.front().slot);
    busy_.pop_front();
  }
  if (free_.empty()) return std::nullopt;
  const std::uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

bool StagingSlots::keep(StagedPart& part) {
  if (!part.is_kept && kept_ < kept_most_) {
    part.is_kept = true;
    ++kept_;
  }
  return part.is_kept;
}

void StagingSlots::release(const StagedPart& part, MoveTicket done) {
  --loaded_;
  if (part.is_kept) --kept_;
  if (part.ticket <= done) {
    free_.push_back(part.slot());
    return;
  }
  // Inserts in the order of tickets: take() looks at the front only.
  const auto later = std::find_if(busy_.begin(), busy_.end(),
                                  [&](const Busy& busy) { return busy.until > part.ticket; });
  busy_.insert(later, {part.ticket, part.slot()});
}

}  // namespace oriel::net
