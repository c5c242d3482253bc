// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "net/mlx5/mlx5_device.hpp"
#include "net/mlx5/mlx5_doorbell.hpp"
#include "net/mlx5/mlx5_memory.hpp"
#include "net/mlx5/mlx5_queue.hpp"
#include "net/soft/nic_thread.hpp"

namespace oriel::net {

/// Registered memory that WQEs may name. Deregistered when destroyed. Move-only; keeps its device
/// open.
class Mlx5Region {
 public:
  std::uint32_t lkey() const { return region_->lkey; }
  std::uint32_t rkey() const { return region_->rkey; }

 private:
  friend class NicMlx5;
  Mlx5Region(std::shared_ptr<const Mlx5Device> device, Mlx5RegionOwner region)
      : device_(std::move(device)), region_(std::move(region)) {}
  std::shared_ptr<const Mlx5Device> device_;  // closed after the region is gone
  Mlx5RegionOwner region_;
};

/// One port of a real mlx5 adapter. The same device code fills its queues and those of the software
/// NIC (NicSoft). It has not run on hardware yet: docs/mlx5.md says what is known and how.
///
/// Threads: any thread may call anything. Calls block as the kernel's calls do; no call waits for a
/// peer. Regions and queues may outlive the NIC only to be destroyed: nobody rings their doorbells
/// any more if that is a CPU thread's task. The sources of their memory must outlive them.
class NicMlx5 {
 public:
  struct Options {
    Mlx5Device::Options device;
    /// Called first by the NIC's thread, which rings the doorbells that a CPU has to ring. Binds
    /// the thread near the adapter. May be empty.
    std::function<void()> begin{};
  };

  static Result<NicMlx5> open(const Options& options);

  const Mlx5Device& device() const { return *device_; }

  /// Registers memory of the source's kind. WQEs and peers may access it as `access` says (a sum of
  /// Access). Memory of a GPU must lie in one allocation.
  Result<Mlx5Region> register_memory(Mlx5Memory& memory, void* address, std::size_t bytes,
                                     std::uint8_t access) const;

  /// Creates all of these queues or none. Existing queues and their views stay valid and in use
  /// meanwhile.
  Result<std::vector<Mlx5Queue>> create_queues(Mlx5Memory& memory,
                                               std::span<const Mlx5Queue::Options> options);

  /// Rings the doorbells that a CPU has to ring, as the NIC's thread does. Returns whether there
  /// were any.
  bool progress() { return doorbells_->progress(); }

 private:
  NicMlx5(std::shared_ptr<const Mlx5Device> device, const Options& options);
  Status start_thread_if_needed();

  std::shared_ptr<const Mlx5Device> device_;
  std::shared_ptr<Mlx5Doorbells> doorbells_;
  std::function<void()> begin_;
  std::unique_ptr<std::mutex> mutex_;  // guards the start of the thread
  std::optional<NicThread> thread_;
};

}  // namespace oriel::net
