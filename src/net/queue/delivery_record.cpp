// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/queue/delivery_record.hpp"

#include <algorithm>

namespace oriel::net {

void DeliveryRecord::accept(std::uint64_t entry_bytes, std::uint64_t piece_bytes) {
  if (!owed_.empty()) {
    const Span entry = owed_.front();
    if (owed_next_ == entry.first) entries_.push_back(entry);
    pending_.push_back(owed_next_);
    ++owed_next_;
    if (owed_next_ < entry.end) return;
    owed_.pop_front();
    if (!owed_.empty()) owed_next_ = owed_.front().first;
    return;
  }
  if (entry_left_ == 0) {
    entries_.push_back({next_, next_});
    entry_left_ = entry_bytes;
  }
  entry_left_ -= std::min(entry_left_, piece_bytes);
  pending_.push_back(next_);
  ++next_;
  entries_.back().end = next_;
}

void DeliveryRecord::executed(std::uint64_t number) {
  const auto it = std::find(pending_.begin(), pending_.end(), number);  // usually the first
  if (it != pending_.end()) pending_.erase(it);
  const std::uint64_t done = pending_.empty() ? expected() : pending_.front();
  while (!entries_.empty() && entries_.front().end <= done) {
    if (entry_left_ != 0 && entries_.front().end == next_) break;  // more pieces will follow
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

bool DeliveryRecord::is_pending(const Span& entry) const {
  const auto it = std::lower_bound(pending_.begin(), pending_.end(), entry.first);
  return it != pending_.end() && *it < entry.end;
}

void DeliveryRecord::hand_over() {
  if (entry_left_ != 0) {
    // The entry is accepted again from its first piece on.
    next_ = entries_.back().first;
    entries_.pop_back();
    entry_left_ = 0;
  }
  // An owed entry that has come again only in part is still owed, and is the first.
  const std::uint64_t again = owed_.empty() ? next_ : owed_.front().first;
  for (auto it = entries_.rbegin(); it != entries_.rend(); ++it) {
    if (it->first < again && is_pending(*it)) owed_.push_front(*it);
  }
  if (!owed_.empty()) owed_next_ = owed_.front().first;
  pending_.clear();
  entries_.clear();
}

}  // namespace oriel::net
