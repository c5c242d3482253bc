// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "oriel/device/comm.hpp"
#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "base/fork.hpp"
#include "base/task.hpp"

namespace oriel::comm {

class Communicator;

/// Requirements of a user's kernels; the same on all ranks.
struct DeviceCommRequest {
  std::uint32_t device_version = device::kDeviceVersion;  ///< the caller's device headers
  std::uint32_t barrier_slots = 1;
  bool world = false;  ///< reaches the ranks of all LSA teams
  std::uint32_t signals = 0;
  std::uint32_t counters = 0;
};

/// Control memory for a user's kernels: barrier slots, a doorbell, signals, counters and the world
/// ranks of the team. The memory is a window beside the library's own. Its kernels wait with the
/// communicator's notices. So an abort of the communicator ends their waits, and a wait that gives
/// up fails the communicator.
///
/// Keeps its communicator alive. Destroy it after its kernels have ended on all ranks. Move-only.
class DeviceCommMemory {
 public:
  DeviceCommMemory(DeviceCommMemory&& other) noexcept;
  DeviceCommMemory& operator=(DeviceCommMemory&&) = delete;
  ~DeviceCommMemory();

  const device::CommView& view() const { return view_; }

 private:
  friend class Communicator;
  explicit DeviceCommMemory(std::shared_ptr<Communicator> communicator);
  /// Allocates and fills the memory. Local; suspends while the device is busy.
  Task<Status> prepare(EventLoop& loop, DeviceCommRequest request, Deadline deadline);
  /// Completes the view once the memory is registered. Local.
  void show(char* control_base, std::uint32_t stride_4g);
  void lay_out(const DeviceCommRequest& request);

  struct Layout {
    std::uint64_t doorbell = 0;
    std::uint64_t ranks = 0;  ///< world rank of each member of the team
    std::uint64_t barrier = 0;
    std::uint64_t signals = 0;
    std::uint64_t counters = 0;
    std::uint64_t world_barrier = 0;
    std::uint64_t total_bytes = 0;
  };

  const std::uint32_t forks_ = fork_count();  // a forked child must not free its parent's memory
  std::shared_ptr<Communicator> communicator_;
  Layout layout_;
  bool world_ = false;
  bool has_doorbell_ = false;     // the network rings the doorbell
  void* memory_ = nullptr;        // from Device::make_control
  const void* handle_ = nullptr;  // handle of its window
  device::CommView view_;
};

}  // namespace oriel::comm
