// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/queue.hpp"

#include "device/queue_bodies.hpp"

/// Kernels that publish marked WQEs to queues and drain them. Each launcher returns a
/// cudaError_t as int and does not synchronise; `stream` is a cudaStream_t.
namespace oriel::test {

/// Selects how threads publish WQEs.
enum class PublishMethod {
  lock_per_wqe,  ///< each thread: lock, write, ring, unlock; baseline
  thread,        ///< each thread publishes its own WQEs one at a time
  lanes,         ///< like `thread`, but lanes of a warp share their work where possible
  warp,          ///< a warp publishes 32 WQEs at a time
  cta,           ///< a CTA publishes 32 WQEs at a time
};

struct PublishJob {
  const device::queue::QueueView* queues = nullptr;  ///< readable by the kernel
  std::uint32_t queue_count = 1;                     ///< warp or CTA p uses queue p % queue_count
  PublishMethod method = PublishMethod::warp;
  std::uint32_t rounds = 1;   ///< publications of each thread, warp or CTA
  std::uint32_t slow_ns = 0;  ///< sleep of the first publisher between writing and publishing
  device::WaitControl control;
  std::uint32_t* outcomes = nullptr;  ///< device memory, one word per warp: its worst QueueOutcome
  /// Device memory, or null: clock cycles of lane 0's first `samples` publications, from before
  /// reserving to after publishing. Holds `samples` words per warp.
  std::uint32_t* cycles = nullptr;
  std::uint32_t samples = 0;
};

/// Loads both kernels. A kernel that is loaded at its first launch may wait for all running
/// kernels. A running drain would then end only at its limit, because nothing stops it earlier.
int load_queue_kernels();

/// Launches `ctas` CTAs of `warps` warps each. Unless publishing fails, all threads wait for the
/// posted WQEs to complete before they end.
int launch_publish(const PublishJob& job, std::uint32_t ctas, std::uint32_t warps, void* stream);

struct DrainJob {
  QueueDrain* drains = nullptr;         ///< device memory, one per queue; updated at the end
  const std::uint32_t* stop = nullptr;  ///< pinned host memory: nonzero stops the drains
  std::uint64_t limit_ns = 0;           ///< time after which the drains end by themselves
};

/// Drains each of `queues` queues by one CTA of 256 threads until it is stopped.
int launch_drain(const DrainJob& job, std::uint32_t queues, void* stream);

}  // namespace oriel::test
