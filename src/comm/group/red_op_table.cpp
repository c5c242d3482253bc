// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/red_op_table.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace oriel::comm {

Result<int> RedOpTable::add(const UserReduction& reduction) {
  const std::lock_guard lock(mutex_);
  auto it = std::find_if(places_.begin(), places_.end(), [](const Place& p) { return !p.taken; });
  if (it == places_.end()) {
    if (places_.size() > kIndexMask) {
      return Error(ErrorCode::invalid_usage,
                   fmt::format("there are {} user-made reductions already", places_.size()))
          .with_hint("destroy those that are not needed with ncclRedOpDestroy");
    }
    it = places_.emplace(places_.end());
  }
  it->reduction = reduction;
  it->taken = true;
  it->generation = (it->generation + 1) & kGenerationMask;
  const int index = static_cast<int>(it - places_.begin());
  return first_ + (static_cast<int>(it->generation) << kIndexBits | index);
}

const RedOpTable::Place* RedOpTable::place_of(int op) const {
  if (op < first_) return nullptr;
  const auto number = static_cast<std::uint32_t>(op - first_);
  const std::size_t index = number & kIndexMask;
  if (index >= places_.size()) return nullptr;
  const Place& place = places_[index];
  return place.taken && place.generation == number >> kIndexBits ? &place : nullptr;
}

Result<UserReduction> RedOpTable::find(int op) const {
  const std::lock_guard lock(mutex_);
  if (const Place* place = place_of(op)) return place->reduction;
  return Error(ErrorCode::invalid_argument,
               fmt::format("{} is no reduction operation of this communicator", op))
      .with_hint(
          "create it with ncclRedOpCreatePreMulSum for this communicator; it may have been "
          "destroyed");
}

Status RedOpTable::remove(int op) {
  const std::lock_guard lock(mutex_);
  const Place* place = place_of(op);
  if (place == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} is no user-made reduction operation of this communicator", op))
        .with_hint("pass what ncclRedOpCreatePreMulSum has made for this communicator, once");
  }
  places_[static_cast<std::size_t>(place - places_.data())].taken = false;
  return {};
}

}  // namespace oriel::comm
