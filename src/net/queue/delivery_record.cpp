// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/queue/delivery_record.hpp"

#include <algorithm>

namespace oriel::net {

void DeliveryRecord::accept(std::uint64_t wqe_bytes, std::uint64_t piece_bytes) {
  if (!owed_.empty()) {
    const Span wqe = owed_.front();
    if (owed_next_ == wqe.first) wqes_.push_back(wqe);
    pending_.push_back(owed_next_);
    ++owed_next_;
    if (owed_next_ < wqe.end) return;
    owed_.pop_front();
    if (!owed_.empty()) owed_next_ = owed_.front().first;
    return;
  }
  if (wqe_left_ == 0) {
    wqes_.push_back({next_, next_});
    wqe_left_ = wqe_bytes;
  }
  wqe_left_ -= std::min(wqe_left_, piece_bytes);
  pending_.push_back(next_);
  ++next_;
  wqes_.back().end = next_;
}

void DeliveryRecord::executed(std::uint64_t number) {
  const auto it = std::find(pending_.begin(), pending_.end(), number);  // usually the first
  if (it != pending_.end()) pending_.erase(it);
  const std::uint64_t done = pending_.empty() ? expected() : pending_.front();
  while (!wqes_.empty() && wqes_.front().end <= done) {
    if (wqe_left_ != 0 && wqes_.front().end == next_) break;  // more pieces will follow
    wqes_.pop_front();
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

bool DeliveryRecord::is_pending(const Span& wqe) const {
  const auto it = std::lower_bound(pending_.begin(), pending_.end(), wqe.first);
  return it != pending_.end() && *it < wqe.end;
}

void DeliveryRecord::hand_over() {
  if (wqe_left_ != 0) {
    // The WQE is accepted again from its first piece on.
    next_ = wqes_.back().first;
    wqes_.pop_back();
    wqe_left_ = 0;
  }
  // An owed WQE that has come again only in part is still owed, and is the first.
  const std::uint64_t again = owed_.empty() ? next_ : owed_.front().first;
  for (auto it = wqes_.rbegin(); it != wqes_.rend(); ++it) {
    if (it->first < again && is_pending(*it)) owed_.push_front(*it);
  }
  if (!owed_.empty()) owed_next_ = owed_.front().first;
  pending_.clear();
  wqes_.clear();
}

}  // namespace oriel::net
