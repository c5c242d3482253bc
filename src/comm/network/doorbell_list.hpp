// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <vector>

#include "oriel/device/doorbell.hpp"

namespace oriel::comm {

/// Doorbells on which threads of a rank sleep until a NIC has made progress. Thread-safe.
class DoorbellList {
 public:
  void add(device::Doorbell& doorbell) {
    const std::lock_guard lock(mutex_);
    doorbells_.push_back(&doorbell);
  }
  /// Removes a doorbell; after the return it is no longer rung.
  void remove(device::Doorbell& doorbell) {
    const std::lock_guard lock(mutex_);
    std::erase(doorbells_, &doorbell);
  }
  void ring_all() {
    const std::lock_guard lock(mutex_);
    device::ring_fence();
    for (device::Doorbell* const doorbell : doorbells_) device::ring_fenced(*doorbell);
  }

 private:
  std::mutex mutex_;
  std::vector<device::Doorbell*> doorbells_;
};

}  // namespace oriel::comm
