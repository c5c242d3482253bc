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
/// Thread-safe. get() and set() lock one place, and pin() takes no lock, so calls on different
/// handles do not wait for each other. Only new and ended handles take the table's lock. Places
/// never move.
template <class Object, class Handle>
class HandleTable {
  struct Place;

 public:
  /// Keeps the object of a handle alive; null if the handle was invalid. Takes two atomic
  /// read-modify-writes in all, where a shared pointer from get() takes four. If the handle has
  /// been removed meanwhile, the last pin drops the table's reference to the object.
  class Pin {
   public:
    Pin(Pin&& other) noexcept
        : table_(other.table_), place_(std::exchange(other.place_, nullptr)) {}
    Pin& operator=(Pin&&) = delete;
    ~Pin() {
      if (place_ != nullptr) table_->unpin(*place_);
    }
    Object* get() const { return place_ != nullptr ? place_->object.get() : nullptr; }
    Object& operator*() const { return *place_->object; }
    Object* operator->() const { return place_->object.get(); }
    /// Returns the object as get() of the table does.
    std::shared_ptr<Object> shared() const {
      return place_ != nullptr ? place_->object : std::shared_ptr<Object>();
    }

   private:
    friend class HandleTable;
    Pin(HandleTable& table, Place* place) : table_(&table), place_(place) {}

    HandleTable* table_;
    Place* place_;
  };

  HandleTable() = default;
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  /// Returns the handle of a place without an object, where get() finds nothing. For handles that
  /// are published before their object is ready.
  Handle reserve() {
    const std::lock_guard lock(mutex_);
    const std::uint32_t index = take_free_place();
    Place& place = place_at(index);
    const std::uint64_t state = place.state.fetch_or(kTaken, std::memory_order_relaxed);
    return encode(index, generation_of(state));
  }

  /// Sets the object of a reserved handle, once. Does nothing if the handle is invalid.
  void set(Handle handle, std::shared_ptr<Object> object) {
    with_place(handle, [&](Place& place) {
      place.object = std::move(object);
      place.state.fetch_or(kReady, std::memory_order_release);
    });
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

  Pin pin(Handle handle) {
    Place* const place = place_of(handle);
    if (place == nullptr) return Pin(*this, nullptr);
    std::uint64_t state = place->state.load(std::memory_order_relaxed);
    do {
      const bool is_valid = (state & kReady) != 0 && generation_of(state) == generation_of(handle);
      if (!is_valid) return Pin(*this, nullptr);
    } while (!place->state.compare_exchange_weak(state, state + 1, std::memory_order_acquire,
                                                 std::memory_order_relaxed));
    return Pin(*this, place);
  }

  /// Ends the handle: later uses find nothing. Returns the object, or null if the handle was
  /// invalid.
  std::shared_ptr<Object> remove(Handle handle) {
    std::shared_ptr<Object> object;
    bool is_pinned = false;
    const bool is_first = with_place(handle, [&](Place& place) {
      object = place.object;
      std::uint64_t state = place.state.load(std::memory_order_relaxed);
      std::uint64_t ended = 0;
      do {
        ended = (std::uint64_t{generation_of(state)} + 1) << kGenerationShift | (state & kPins);
      } while (!place.state.compare_exchange_weak(state, ended, std::memory_order_acq_rel,
                                                  std::memory_order_relaxed));
      is_pinned = (state & kPins) != 0;
      if (!is_pinned) place.object.reset();
    });
    if (!is_first) return nullptr;
    if (!is_pinned) free_place(index_of(handle));
    return object;
  }

 private:
  struct Place {
    std::atomic<std::uint64_t> state{std::uint64_t{1} << kGenerationShift};
    std::mutex mutex;                // guards writes of `object`, and reads without a pin
    std::shared_ptr<Object> object;  // set while kReady is, and until the last pin
    std::uint32_t index = 0;
  };
  // State of a place: its generation, two flags, and the number of pins. Pins are taken only while
  // kReady is set. remove() clears both flags. A place is free again once it has no pins.
  static constexpr int kGenerationShift = 32;
  static constexpr std::uint64_t kTaken = std::uint64_t{1} << 31;
  static constexpr std::uint64_t kReady = std::uint64_t{1} << 30;
  static constexpr std::uint64_t kPins = kReady - 1;

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

  static std::uint32_t generation_of(std::uint64_t state) {
    return static_cast<std::uint32_t>(state >> kGenerationShift);
  }
  static std::uintptr_t generation_of(Handle handle) {
    return reinterpret_cast<std::uintptr_t>(handle) >> kIndexBits;
  }

  Place& place_at(std::uint32_t index) const {
    const auto chunk = static_cast<std::size_t>(std::bit_width(index / kFirstChunk + 1)) - 1;
    const std::uint32_t first = kFirstChunk * ((1u << chunk) - 1);
    return chunks_[chunk].load(std::memory_order_acquire)[index - first];
  }
  /// Returns the place of a handle, whatever its generation; null if there is no such place.
  Place* place_of(Handle handle) const {
    const std::uint32_t index = index_of(handle);
    return index < size_.load(std::memory_order_acquire) ? &place_at(index) : nullptr;
  }
  /// Calls `act` with the place of a valid handle, under the lock of the place. Returns whether the
  /// handle is valid.
  template <class Act>
  bool with_place(Handle handle, const Act& act) const {
    Place* const place = place_of(handle);
    if (place == nullptr) return false;
    const std::lock_guard lock(place->mutex);
    const std::uint64_t state = place->state.load(std::memory_order_relaxed);
    if ((state & kTaken) == 0 || generation_of(state) != generation_of(handle)) return false;
    act(*place);
    return true;
  }
  void unpin(Place& place) {
    const std::uint64_t before = place.state.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & kPins) != 1 || (before & kTaken) != 0) return;
    // The handle was removed, and this was the last pin.
    std::shared_ptr<Object> last;
    {
      const std::lock_guard lock(place.mutex);
      last.swap(place.object);
    }
    free_place(place.index);
  }
  void free_place(std::uint32_t index) {
    const std::lock_guard lock(mutex_);
    free_.push_back(index);
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
    place_at(index).index = index;
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
