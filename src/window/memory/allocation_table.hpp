// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "window/memory/mappable_memory.hpp"

namespace oriel::window {

/// Where ranks of one process find each other's allocations, and those that one of them has
/// imported for all: by identity, without a handle travelling. Holds no allocation alive. Also
/// counts on which of this process's allocations windows stand. Thread-safe.
class AllocationTable {
 public:
  /// The table of this process; never destroyed.
  static AllocationTable& instance();

  /// No fork finds it locked from now on.
  void keep_free_in_children() { oriel::keep_free_in_children(ForkLock::allocations, mutex_); }

  /// Makes `allocation` known by its identity. The reference to hold from then on: that of whoever
  /// was first, so that find() answers as long as any of them lives.
  [[nodiscard]] AllocationRef publish(const AllocationRef& allocation);
  /// The allocation, or null if nobody in this process holds it.
  AllocationRef find(AllocationId id) const;

  /// A rank of this process has a window on its allocation `id`, or is about to. vacate() each.
  void occupy(AllocationId id);
  void vacate(AllocationId id);
  bool occupied(AllocationId id) const;
  /// Destroys `thing` once nothing occupies `id`: now, or in the last vacate().
  void destroy_when_vacant(AllocationId id, std::shared_ptr<void> thing);

 private:
  void forget_dead();

  mutable std::mutex mutex_;
  std::map<AllocationId, std::weak_ptr<const Allocation>> known_;
  std::size_t next_sweep_ = 64;
  struct Occupants {
    std::size_t count = 0;
    std::vector<std::shared_ptr<void>> leaving;  // with the last of them
  };
  std::map<AllocationId, Occupants> occupants_;
};

/// Occupies an allocation until destroyed.
class Occupant {
 public:
  explicit Occupant(AllocationId id) : id_(id) { AllocationTable::instance().occupy(id); }
  Occupant(Occupant&& other) noexcept : id_(std::exchange(other.id_, std::nullopt)) {}
  Occupant& operator=(Occupant&&) = delete;
  ~Occupant() {
    if (id_) AllocationTable::instance().vacate(*id_);
  }

 private:
  std::optional<AllocationId> id_;
};

}  // namespace oriel::window
