// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "oriel/device/memory.hpp"

#include "net/soft/nic_soft.hpp"

namespace oriel::net {

/// Has the calling thread's waits on queues drive these NICs for as long as this lives: for CPU
/// ranks, whose NIC needs no thread while they wait for it. Used with DrivingMemory as the policy
/// of the functions that wait. Scopes of one thread nest.
class DrivingScope {
 public:
  /// The array and what it points to outlive the scope.
  explicit DrivingScope(std::span<NicSoft* const> nics) : before_(current_) { current_ = nics; }
  ~DrivingScope() { current_ = before_; }
  DrivingScope(const DrivingScope&) = delete;
  DrivingScope& operator=(const DrivingScope&) = delete;

  static void drive() {
    for (NicSoft* const nic : current_) nic->progress();
  }

 private:
  static inline thread_local std::span<NicSoft* const> current_;
  std::span<NicSoft* const> before_;
};

/// The machine's memory; between two polls a waiting thread drives its NICs.
struct DrivingMemory : device::Memory {
  static void relax() {
    device::Memory::relax();
    DrivingScope::drive();
  }
};

}  // namespace oriel::net
