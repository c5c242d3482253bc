// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/allocation_table.hpp"

#include <algorithm>

namespace oriel::window {

AllocationTable& AllocationTable::instance() {
  static AllocationTable* const table = new AllocationTable;
  return *table;
}

AllocationRef AllocationTable::publish(const AllocationRef& allocation) {
  const std::lock_guard lock(mutex_);
  std::weak_ptr<const Allocation>& known = known_[allocation->id()];
  if (AllocationRef first = known.lock()) return first;
  known = allocation;
  if (known_.size() >= next_sweep_) forget_dead();
  return allocation;
}

AllocationRef AllocationTable::find(AllocationId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(id);
  return found == known_.end() ? nullptr : found->second.lock();
}

void AllocationTable::occupy(AllocationId id) {
  const std::lock_guard lock(mutex_);
  ++occupants_[id].count;
}

void AllocationTable::vacate(AllocationId id) {
  Occupants gone;  // destroyed after the lock has been released
  const std::lock_guard lock(mutex_);
  const auto found = occupants_.find(id);
  if (--found->second.count > 0) return;
  gone = std::move(found->second);
  occupants_.erase(found);
}

void AllocationTable::destroy_when_vacant(AllocationId id, std::shared_ptr<void> thing) {
  const std::lock_guard lock(mutex_);
  const auto found = occupants_.find(id);
  // without occupants, the caller's reference is the last one and destroys `thing` after the lock
  if (found != occupants_.end()) found->second.leaving.push_back(std::move(thing));
}

bool AllocationTable::occupied(AllocationId id) const {
  const std::lock_guard lock(mutex_);
  return occupants_.contains(id);
}

/// Sweeps when the table has doubled, which bounds both its size and the cost per entry.
void AllocationTable::forget_dead() {
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  next_sweep_ = std::max<std::size_t>(64, 2 * known_.size());
}

}  // namespace oriel::window
