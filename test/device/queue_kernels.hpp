// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/queue.hpp"

#include "device/queue_bodies.hpp"

/// Kernels that publish marked entries to queues and drain them. Each launcher returns a
/// cudaError_t as int and does not synchronise; `stream` is a cudaStream_t.
namespace oriel::test {

/// Who publishes what.
enum class PublishMethod {
  lock_per_entry,  ///< each thread: lock, write, ring, unlock; for comparison
  thread,          ///< each thread an entry of its own at a time
  lanes,           ///< the same, sharing what they can with others of their warp
  warp,            ///< 32 entries of a warp at a time
  cta,             ///< 32 entries of a CTA at a time
};

struct PublishJob {
  const device::queue::QueueView* queues = nullptr;  ///< readable by the kernel
  std::uint32_t queue_count = 1;                     ///< warp w uses queue w % queue_count
  PublishMethod method = PublishMethod::warp;
  std::uint32_t rounds = 1;   ///< entries of each thread
  std::uint32_t slow_ns = 0;  ///< the first warp sleeps as long between writing and publishing
  device::WaitControl control;
  std::uint32_t* outcomes = nullptr;  ///< device memory, one word per warp: its worst QueueOutcome
  /// Device memory, or null: clock cycles of lane 0's first `samples` publications, from reserving
  /// to published, `samples` words per warp.
  std::uint32_t* cycles = nullptr;
  std::uint32_t samples = 0;
};

/// Has both kernels loaded: a kernel that is loaded at its first launch may wait for all that runs,
/// and so for the drains that run until they are told to stop.
int load_queue_kernels();

/// `ctas` CTAs of `warps` warps each. All wait for their entries to be complete before they end.
int launch_publish(const PublishJob& job, std::uint32_t ctas, std::uint32_t warps, void* stream);

struct DrainJob {
  QueueDrain* drains = nullptr;         ///< device memory, one per queue; updated at the end
  const std::uint32_t* stop = nullptr;  ///< pinned host memory: nonzero ends the drains
  std::uint64_t limit_ns = 0;           ///< they end by themselves after this
};

/// One CTA of 256 threads drains each of `queues` queues until it is told to stop.
int launch_drain(const DrainJob& job, std::uint32_t queues, void* stream);

}  // namespace oriel::test
