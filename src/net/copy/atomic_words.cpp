// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/atomic_words.hpp"

namespace oriel::net {

std::uint64_t* AtomicWords::find(std::uint64_t place) {
  const auto known = values_.find(place);
  return known == values_.end() ? nullptr : &known->second;
}

std::uint64_t* AtomicWords::add(std::uint64_t place, std::uint64_t value) {
  return &values_.emplace(place, value).first->second;
}

void AtomicWords::begin_reading(AtomicMove& move, std::uint64_t place) {
  move.read_at = ++clock_;
  ++readings_[place].readers;
}

bool AtomicWords::end_reading(AtomicMove& move, std::uint64_t place) {
  move.reading = {};
  const auto reading = readings_.find(place);
  const bool is_fresh = reading->second.changed_at < move.read_at;
  if (--reading->second.readers == 0) readings_.erase(reading);
  return is_fresh;
}

void AtomicWords::note_change(std::uint64_t place) {
  if (const auto reading = readings_.find(place); reading != readings_.end()) {
    reading->second.changed_at = ++clock_;
  }
}

void AtomicWords::forget(const std::byte* at, std::size_t count) {
  const auto address = reinterpret_cast<std::uint64_t>(at);
  const std::uint64_t begin = address & ~std::uint64_t{7};
  for (auto reading = readings_.lower_bound(begin);
       reading != readings_.end() && reading->first < address + count; ++reading) {
    reading->second.changed_at = ++clock_;
  }
  if (values_.empty()) return;
  values_.erase(values_.lower_bound(begin), values_.lower_bound(address + count));
}

}  // namespace oriel::net
