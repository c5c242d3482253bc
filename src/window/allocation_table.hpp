// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "window/memory.hpp"

namespace oriel::window {

/// Where ranks of one process find each other's allocations, and those that one of them has
/// imported for all: by identity, without a handle travelling. Holds nothing alive. Thread-safe.
class AllocationTable {
 public:
  /// The table of this process; never destroyed.
  static AllocationTable& instance();

  void publish(const AllocationRef& allocation);
  /// The allocation, or null if nobody in this process holds it.
  AllocationRef find(AllocationId id) const;
  /// Entries, live or not; for tests.
  std::size_t size() const;

 private:
  void forget_dead();

  mutable std::mutex mutex_;
  std::map<AllocationId, std::weak_ptr<const Allocation>> known_;
  std::size_t next_sweep_ = 64;
};

}  // namespace oriel::window
