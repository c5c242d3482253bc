// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/delivery_record.hpp"

#include <algorithm>

namespace oriel::net {

void DeliveryRecord::accept(std::uint64_t entry_bytes, std::uint64_t piece_bytes) {
  if (entry_left_ == 0) {
    entries_.push_back({expected_, expected_});
    entry_left_ = entry_bytes;
  }
  entry_left_ -= std::min(entry_left_, piece_bytes);
  pending_.push_back(expected_++);
  entries_.back().end = expected_;
}

void DeliveryRecord::executed(std::uint64_t number) {
  const auto it = std::find(pending_.begin(), pending_.end(), number);  // the first as a rule
  if (it != pending_.end()) pending_.erase(it);
  if (!owed_.empty()) std::erase(owed_, number);
  const std::uint64_t done = pending_.empty() ? expected_ : pending_.front();
  while (!entries_.empty() && entries_.front().end <= done) {
    if (entries_.size() == 1 && entry_left_ != 0) break;
    entries_.pop_front();
  }
}

void DeliveryRecord::executed(std::uint64_t number, std::uint64_t old_value) {
  executed(number);
  values_.push_back({number, old_value});
  if (values_.size() > values_most_) values_.pop_front();
}

std::optional<std::uint64_t> DeliveryRecord::old_value(std::uint64_t number) const {
  const auto it = std::find_if(values_.rbegin(), values_.rend(),
                               [&](const Value& value) { return value.number == number; });
  if (it == values_.rend()) return std::nullopt;
  return it->old_value;
}

void DeliveryRecord::hand_over() {
  if (entry_left_ != 0) {
    // Accepted from its first piece on once more.
    expected_ = entries_.back().first;
    entries_.pop_back();
    entry_left_ = 0;
    std::erase_if(owed_, [&](std::uint64_t number) { return number >= expected_; });
  }
  for (const Span& entry : entries_) {
    const auto it = std::lower_bound(pending_.begin(), pending_.end(), entry.first);
    if (it == pending_.end() || *it >= entry.end) continue;
    for (std::uint64_t number = entry.first; number < entry.end; ++number) {
      if (!is_owed(number)) owed_.push_back(number);
    }
  }
  pending_.clear();
  entries_.clear();
}

bool DeliveryRecord::is_owed(std::uint64_t number) const {
  return std::find(owed_.begin(), owed_.end(), number) != owed_.end();
}

}  // namespace oriel::net
