// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace oriel::comm {

/// Turns objects into opaque pointers for C, such that a handle that was destroyed, or never made,
/// is recognised: a handle is a place in the table and the place's generation, not an address.
/// Thread-safe. A plain lock, held for some 10 ns: taking a shared one costs more than that.
template <class Object, class Handle>
class HandleTable {
 public:
  /// A place without an object yet; get() finds nothing there. For handles that are given out
  /// before what they stand for is ready.
  Handle reserve() {
    const std::lock_guard lock(mutex_);
    if (free_ == places_.size()) places_.emplace_back().next_free = free_ + 1;
    const std::uint32_t index = free_;
    free_ = places_[index].next_free;
    places_[index].taken = true;
    return encode(index, places_[index].generation);
  }

  void set(Handle handle, std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    if (Place* place = find(handle)) place->object = std::move(object);
  }

  Handle add(std::shared_ptr<Object> object) {
    const Handle handle = reserve();
    set(handle, std::move(object));
    return handle;
  }

  /// The object, which lives on while the caller holds it; null for a handle that stands for none.
  std::shared_ptr<Object> get(Handle handle) const {
    const std::lock_guard lock(mutex_);
    const Place* place = find(handle);
    return place != nullptr ? place->object : nullptr;
  }

  /// Ends the handle; every later use of it finds nothing. The object, if this was the first
  /// remove.
  std::shared_ptr<Object> remove(Handle handle) {
    const std::lock_guard lock(mutex_);
    Place* place = find(handle);
    if (place == nullptr) return nullptr;
    auto object = std::move(place->object);
    place->taken = false;
    ++place->generation;
    place->next_free = std::exchange(free_, static_cast<std::uint32_t>(place - places_.data()));
    return object;
  }

 private:
  struct Place {
    std::shared_ptr<Object> object;
    std::uint32_t generation = 1;
    std::uint32_t next_free = 0;  // index; the table's size ends the list
    bool taken = false;
  };
  // Low bits hold the index + 1, so that no handle is null; bits above hold the generation.
  static constexpr int kIndexBits = 24;
  static constexpr std::uintptr_t kIndexMask = (std::uintptr_t{1} << kIndexBits) - 1;

  static Handle encode(std::uint32_t index, std::uint32_t generation) {
    return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(generation) << kIndexBits |
                                    (index + 1));
  }
  const Place* find(Handle handle) const {
    const auto bits = reinterpret_cast<std::uintptr_t>(handle);
    const std::uintptr_t index = (bits & kIndexMask) - 1;  // wraps for null
    if (index >= places_.size()) return nullptr;
    const Place& place = places_[index];
    return place.taken && place.generation == bits >> kIndexBits ? &place : nullptr;
  }
  Place* find(Handle handle) { return const_cast<Place*>(std::as_const(*this).find(handle)); }

  mutable std::mutex mutex_;
  std::vector<Place> places_;
  std::uint32_t free_ = 0;  // index of the first free place
};

}  // namespace oriel::comm
