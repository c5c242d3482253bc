// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace oriel::comm {

/// Maps objects to opaque pointers for C. A handle is the index of a place and its generation, not
/// an address. So a handle that was destroyed or never made is recognised.
///
/// Thread-safe. get() and set() lock one place, so calls on different handles do not wait for each
/// other. Only new and ended handles take the table's lock. Places never move.
template <class Object, class Handle>
class HandleTable {
 public:
  HandleTable() = default;
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  /// Returns the handle of a place without an object, where get() finds nothing. For handles that
  /// are published before their object is ready.
  Handle reserve() {
    const std::lock_guard lock(mutex_);
    const std::uint32_t index = take_free_place();
    Place& place = place_at(index);
    const std::lock_guard place_lock(place.mutex);
    place.taken = true;
    return encode(index, place.generation);
  }

  void set(Handle handle, std::shared_ptr<Object> object) {
    with_place(handle, [&](Place& place) { place.object = std::move(object); });
  }

  Handle add(std::shared_ptr<Object> object) {
    const Handle handle = reserve();
    set(handle, std::move(object));
    return handle;
  }

  /// Returns the object, which lives as long as the caller holds it; null for an invalid handle.
  std::shared_ptr<Object> get(Handle handle) const {
    std::shared_ptr<Object> object;
    with_place(handle, [&](const Place& place) { object = place.object; });
    return object;
  }

  /// Ends the handle: later uses find nothing. Returns the object, or null if the handle was
  /// invalid.
  std::shared_ptr<Object> remove(Handle handle) {
    std::shared_ptr<Object> object;
    const bool is_first = with_place(handle, [&](Place& place) {
      object = std::move(place.object);
      place.taken = false;
      ++place.generation;
    });
    if (!is_first) return nullptr;
    const std::lock_guard lock(mutex_);
    free_.push_back(index_of(handle));
    return object;
  }

 private:
  struct Place {
    std::mutex mutex;  // guards the fields below
    std::shared_ptr<Object> object;
    std::uint32_t generation = 1;
    bool taken = false;
  };
  // Low bits hold the index + 1, so that no handle is null; bits above hold the generation.
  static constexpr int kIndexBits = 24;
  static constexpr std::uintptr_t kIndexMask = (std::uintptr_t{1} << kIndexBits) - 1;
  // Chunk c has 2^c times as many places as the first one.
  static constexpr std::uint32_t kFirstChunk = 64;
  static constexpr std::size_t kChunks = kIndexBits - 6 + 1;

  static Handle encode(std::uint32_t index, std::uint32_t generation) {
    return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(generation) << kIndexBits |
                                    (index + 1));
  }
  static std::uint32_t index_of(Handle handle) {
    const auto bits = reinterpret_cast<std::uintptr_t>(handle) & kIndexMask;
    return static_cast<std::uint32_t>(bits) - 1;  // wraps for null
  }

  Place& place_at(std::uint32_t index) const {
    const auto chunk = static_cast<std::size_t>(std::bit_width(index / kFirstChunk + 1)) - 1;
    const std::uint32_t first = kFirstChunk * ((1u << chunk) - 1);
    return chunks_[chunk].load(std::memory_order_acquire)[index - first];
  }
  /// Calls `act` with the place of a valid handle, under the lock of the place. Returns whether the
  /// handle is valid.
  template <class Act>
  bool with_place(Handle handle, const Act& act) const {
    const std::uint32_t index = index_of(handle);
    if (index >= size_.load(std::memory_order_acquire)) return false;
    Place& place = place_at(index);
    const std::lock_guard lock(place.mutex);
    const auto generation = reinterpret_cast<std::uintptr_t>(handle) >> kIndexBits;
    if (!place.taken || place.generation != generation) return false;
    act(place);
    return true;
  }
  /// Returns the index of a free place. The caller holds mutex_.
  std::uint32_t take_free_place() {
    if (!free_.empty()) {
      const std::uint32_t index = free_.back();
      free_.pop_back();
      return index;
    }
    const std::uint32_t index = size_.load(std::memory_order_relaxed);
    const std::size_t chunks = owned_.size();
    if (index == kFirstChunk * ((1u << chunks) - 1)) {
      free_.reserve(kFirstChunk * ((2u << chunks) - 1));  // keeps remove() from allocating
      owned_.push_back(std::make_unique<Place[]>(std::size_t{kFirstChunk} << chunks));
      chunks_[chunks].store(owned_.back().get(), std::memory_order_release);
    }
    size_.store(index + 1, std::memory_order_release);
    return index;
  }

  std::mutex mutex_;  // guards owned_, free_ and growth
  std::vector<std::unique_ptr<Place[]>> owned_;
  std::vector<std::uint32_t> free_;
  std::array<std::atomic<Place*>, kChunks> chunks_{};
  std::atomic<std::uint32_t> size_{0};  // number of places
};

}  // namespace oriel::comm
