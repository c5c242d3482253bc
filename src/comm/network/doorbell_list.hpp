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
  void add(device::Doorbell& bell) {
    const std::lock_guard lock(mutex_);
    bells_.push_back(&bell);
  }
  /// Removes a doorbell; after the return it is no longer rung.
  void remove(device::Doorbell& bell) {
    const std::lock_guard lock(mutex_);
    std::erase(bells_, &bell);
  }
  void ring_all() {
    const std::lock_guard lock(mutex_);
    device::ring_fence();
    for (device::Doorbell* const bell : bells_) device::ring_fenced(*bell);
  }

 private:
  std::mutex mutex_;
  std::vector<device::Doorbell*> bells_;
};

}  // namespace oriel::comm
