// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "oriel/api.hpp"
#include "oriel/device/comm.hpp"

namespace oriel {

class Communicator;

/// What kernels of a user's need; the same on all ranks.
struct DeviceCommOptions {
  /// Leave it: by it the library sees which headers the caller, and so its kernels, were compiled
  /// with. Those of another version are refused with both numbers.
  std::uint32_t device_version = device::kDeviceVersion;
  /// Barriers that can be under way at once, 1 to 65536: the CTAs of the largest kernel that will
  /// use it (on the CPU: the threads of one rank). Each takes 64 bytes and 4 bytes for each rank of
  /// the node, rounded up to 64.
  std::uint32_t barrier_slots = 32;
  /// Its kernels reach the ranks of all nodes (oriel/device/world.hpp, world_barrier.hpp), and not
  /// those of their own alone. Where there are several nodes this makes queues to their ranks the
  /// first time; it is refused, with what is missing, where there is no path to them. World
  /// barriers take another 192 bytes a slot.
  bool world = false;
  /// Signals that any rank may add to, up to 65536; 16 bytes each.
  std::uint32_t signals = 0;
  /// Counters of what this rank has posted, up to 4096; 8 bytes each for every rank.
  std::uint32_t counters = 0;
};

/// A communicator for kernels of your own: Communicator::device_comm makes it. Its flags and
/// counters are its own, so its kernels and the library's collectives may run at the same time. Two
/// kernels that may run at once need two of them, or distinct barrier slots.
///
/// Waits in its kernels end as the library's do: the peer acts; the communicator is aborted, or a
/// peer dies; or ORIEL_COLLECTIVE_TIMEOUT passes, which makes the communicator unusable.
///
/// It holds its communicator. Destroy it when its kernels have ended on all ranks. Move-only.
/// Distinct objects may be used by distinct threads, one object by one thread at a time.
class ORIEL_API DeviceComm {
 public:
  DeviceComm(DeviceComm&& other) noexcept;
  DeviceComm& operator=(DeviceComm&& other) noexcept;
  ~DeviceComm();

  /// What a kernel takes by value. Valid until this is destroyed. Local, does not block. Requires
  /// that this was not moved from.
  const device::CommView& view() const;

 private:
  friend class Communicator;
  struct Impl;
  explicit DeviceComm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oriel
