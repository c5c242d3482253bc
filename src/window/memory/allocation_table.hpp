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

/// Process-wide table by which ranks of one process find each other's allocations and imported
/// ones. It finds an allocation by identity, without sending a handle. publish() holds no
/// allocation alive; destroy_when_vacant() holds its `thing` while `id` is occupied. Also counts
/// the windows on each of this process's allocations. Thread-safe.
class AllocationTable {
 public:
  /// Returns the table of this process; never destroyed.
  static AllocationTable& instance();

  /// Ensures that no fork from now on leaves the mutex locked in the child.
  void keep_free_in_children() { oriel::keep_free_in_children(ForkLock::allocations, mutex_); }

  /// Makes `allocation` findable by its identity. Returns the reference to hold from now on: the
  /// first one published, so that find() succeeds as long as any holder lives.
  [[nodiscard]] AllocationRef publish(const AllocationRef& allocation);
  /// Returns the allocation, or null if nobody in this process holds it.
  AllocationRef find(AllocationId id) const;

  /// Counts a window of this process on its allocation `id`, existing or planned. Pair each call
  /// with vacate().
  void occupy(AllocationId id);
  void vacate(AllocationId id);
  bool occupied(AllocationId id) const;
  /// Destroys `thing` once nothing occupies `id`: at once, or in the last vacate().
  void destroy_when_vacant(AllocationId id, std::shared_ptr<void> thing);

 private:
  void forget_dead();

  mutable std::mutex mutex_;
  std::map<AllocationId, std::weak_ptr<const Allocation>> known_;
  std::size_t next_sweep_ = 64;
  struct Occupants {
    std::size_t count = 0;
    std::vector<std::shared_ptr<void>> leaving;  // destroyed when the count reaches 0
  };
  std::map<AllocationId, Occupants> occupants_;
};

/// Occupies an allocation for its own lifetime.
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
