// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "oriel/device/queue.hpp"
#include "oriel/error.hpp"

#include "net/mlx5/mlx5_queue.hpp"

namespace oriel::net {

/// Offsets in the memory of the adapter's rings. First come the receives, then the WQEBBs. On pages
/// of their own follow the completions of sends and all doorbell records. On further pages follow
/// the completions of receives.
struct Mlx5RingLayout {
  std::size_t wqebbs = 0;
  std::size_t completions = 0;
  std::size_t queue_record = 0;  ///< from `completions`, as the next two: receives, sends
  std::size_t completion_record = 0;
  std::size_t received_record = 0;
  std::size_t received = 0;
  std::size_t bytes = 0;
};

/// Memory of one queue, prepared for the adapter. It has the rings, which the adapter knows as
/// umems, and the users' own words. Among these words, the slots for old values have a key.
class Mlx5QueueMemory {
 public:
  /// The memory's source outlives it.
  Status allocate(Mlx5Memory& memory, const Mlx5Queue::Options& options);
  Status register_with(const Mlx5Device& device, Mlx5Memory& memory);
  /// Fills the memory for a queue that nobody has used.
  Status fill();
  /// Reports all receives to the adapter, if there are any.
  Status publish_receives();
  /// Fills in all addresses and sizes, and the slots' key.
  void describe(device::queue::QueueView& view, device::queue::ReceiveView& receives) const;

  const device::queue::Completion& own_completion() const {
    return *reinterpret_cast<const device::queue::Completion*>(rings_->own() + layout_.completions);
  }
  /// Returns the doorbell record of sends: the index up to which the users have posted.
  const std::uint32_t* own_send_record() const;
  const Mlx5RingLayout& layout() const { return layout_; }
  /// Returns log2 of the ring's page size in the adapter's pages of 4096 bytes.
  std::uint32_t log_ring_page() const;
  std::uint32_t ring_umem() const { return ring_umem_->id; }
  std::uint32_t completion_umem() const { return completion_umem_->id; }
  std::uint32_t received_umem() const { return received_umem_->id; }

 private:
  Mlx5Queue::Options options_;
  std::size_t page_ = 4096;
  Mlx5RingLayout layout_;
  // Destroyed in reverse order.
  std::unique_ptr<QueuePages> words_;
  std::unique_ptr<QueuePages> rings_;
  Mlx5RegionOwner slots_;
  Mlx5UmemOwner ring_umem_;
  Mlx5UmemOwner completion_umem_;
  Mlx5UmemOwner received_umem_;
};

}  // namespace oriel::net
