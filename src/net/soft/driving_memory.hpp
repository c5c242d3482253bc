// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "oriel/device/memory.hpp"

#include "net/soft/nic_soft.hpp"

namespace oriel::net {

/// Makes the calling thread's waits on queues drive these NICs during the scope's lifetime. For
/// tests and benchmarks; CPU ranks use device::WorldMemory instead. The waiting functions need
/// DrivingMemory as their policy. Scopes of one thread nest.
class DrivingScope {
 public:
  /// The array and its targets outlive the scope.
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

/// Host memory policy; between two polls a waiting thread drives its NICs.
struct DrivingMemory : device::Memory {
  static void relax() {
    device::Memory::relax();
    DrivingScope::drive();
  }
};

}  // namespace oriel::net
