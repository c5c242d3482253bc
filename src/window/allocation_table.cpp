// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/allocation_table.hpp"

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
  ++occupants_[id];
}

void AllocationTable::vacate(AllocationId id) {
  const std::lock_guard lock(mutex_);
  const auto found = occupants_.find(id);
  if (--found->second == 0) occupants_.erase(found);
}

bool AllocationTable::occupied(AllocationId id) const {
  const std::lock_guard lock(mutex_);
  return occupants_.contains(id);
}

std::size_t AllocationTable::size() const {
  const std::lock_guard lock(mutex_);
  return known_.size();
}

/// Sweeping when the table has doubled keeps both its size and the cost per entry bounded.
void AllocationTable::forget_dead() {
  std::erase_if(known_, [](const auto& entry) { return entry.second.expired(); });
  next_sweep_ = std::max<std::size_t>(64, 2 * known_.size());
}

}  // namespace oriel::window
