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

/// Memory that entries may name, until it is destroyed. Move-only; keeps its device open.
class Mlx5Region {
 public:
  std::uint32_t local_key() const { return region_->local_key; }
  std::uint32_t remote_key() const { return region_->remote_key; }

 private:
  friend class NicMlx5;
  Mlx5Region(std::shared_ptr<const Mlx5Device> device, Mlx5RegionOwner region)
      : device_(std::move(device)), region_(std::move(region)) {}
  std::shared_ptr<const Mlx5Device> device_;  // closed after the region is gone
  Mlx5RegionOwner region_;
};

/// One port of a real adapter of the mlx5 family, for queues that the same device code fills as
/// those of the software NIC (NicSoft). Nothing of it has run on hardware yet: docs/mlx5.md says
/// what is known and how.
///
/// Threads: any may call anything. Blocking, as the kernel's calls are; no call waits for a peer.
/// Regions and queues may outlive it, to be destroyed: doorbells that a processor rings are not
/// rung any more. The sources of their memory must outlive them.
class NicMlx5 {
 public:
  struct Options {
    Mlx5Device::Options device;
    /// Whether doorbells that the processor has to ring are rung by a thread; else whoever waits
    /// calls progress().
    bool own_thread = true;
    /// Called by that thread first: puts it beside the adapter. May be empty.
    std::function<void()> begin{};
  };

  static Result<NicMlx5> open(const Options& options);

  const Mlx5Device& device() const { return *device_; }

  /// Memory of the source's kind, of which entries and peers may then do what `access` says (a sum
  /// of Access). Memory of a GPU: of one allocation.
  Result<Mlx5Region> register_memory(Mlx5Memory& memory, void* address, std::size_t bytes,
                                     std::uint8_t access) const;

  /// All of these queues or none. Queues that exist, and their views, stay as they are and in use
  /// while others are made.
  Result<std::vector<Mlx5Queue>> create_queues(Mlx5Memory& memory,
                                               std::span<const Mlx5Queue::Options> options);

  /// Rings what a processor has to ring. Whether there was anything.
  bool progress() { return doorbells_->progress(); }

 private:
  NicMlx5(std::shared_ptr<const Mlx5Device> device, const Options& options);
  Status start_thread_if_needed();

  std::shared_ptr<const Mlx5Device> device_;
  std::shared_ptr<Mlx5Doorbells> doorbells_;
  bool own_thread_;
  std::function<void()> begin_;
  std::unique_ptr<std::mutex> mutex_;  // of the thread's start
  std::optional<NicThread> thread_;
};

}  // namespace oriel::net
