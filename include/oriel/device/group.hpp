// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/memory.hpp"

/// Cooperative groups: the threads that do one thing together. A function that takes a Group is
/// called by every thread of it with the same arguments. On the CPU each group has one thread.
///   rank(): this thread's index, 0 to size() - 1. size(): number of threads.
///   sync(): returns once every thread has called it; memory accesses before it in any thread of
///   the
///     group happen before those after it in any other. Threads that have left the kernel are not
///     waited for.
///   any(mine): sync(), and true for all if `mine` is true for at least one thread. It spreads the
///     news that a wait was aborted.
///   broadcast(value): thread 0's value, for all. Orders no memory.
namespace oriel::device {

/// One thread.
struct Thread {
  static ORIEL_DEVICE_FN std::uint32_t rank() { return 0; }
  static ORIEL_DEVICE_FN std::uint32_t size() { return 1; }
  static ORIEL_DEVICE_FN void sync() {}
  static ORIEL_DEVICE_FN bool any(bool mine) { return mine; }
  static ORIEL_DEVICE_FN std::uint64_t broadcast(std::uint64_t value) { return value; }
};

/// One thread, too; but where threads of a warp call the same function together, each with
/// arguments of its own, they share what they can: one atomic, one hand-over, one doorbell for all.
/// For functions that say so.
struct Lanes : Thread {
  static ORIEL_DEVICE_FN std::uint32_t lane() { return arch::warp_lane(); }
  /// How many there can be.
  static ORIEL_DEVICE_FN std::uint32_t most() { return arch::warp_size(); }
  /// The lanes that make this call together with the same key, a bit each; perhaps not all that
  /// will make it.
  static ORIEL_DEVICE_FN std::uint32_t together(std::uint64_t key) {
    return arch::lanes_together(key);
  }
  /// How many of `lanes` are before this one, and how many there are.
  static ORIEL_DEVICE_FN std::uint32_t before(std::uint32_t lanes) {
    return arch::lanes_before(lanes);
  }
  static ORIEL_DEVICE_FN std::uint32_t count(std::uint32_t lanes) {
    return arch::lanes_count(lanes);
  }
  /// As sync() and broadcast() among `lanes`, all of which call it; of the first one's value.
  static ORIEL_DEVICE_FN void sync_among(std::uint32_t lanes) { arch::lanes_sync(lanes); }
  static ORIEL_DEVICE_FN std::uint64_t broadcast_among(std::uint32_t lanes, std::uint64_t value) {
    return arch::lanes_broadcast(lanes, value);
  }
};

/// The 32 threads of a warp, all of them active.
struct Warp {
  static ORIEL_DEVICE_FN std::uint32_t rank() { return arch::warp_lane(); }
  static ORIEL_DEVICE_FN std::uint32_t size() { return arch::warp_size(); }
  static ORIEL_DEVICE_FN void sync() { arch::warp_sync(); }
  static ORIEL_DEVICE_FN bool any(bool mine) { return arch::warp_any(mine); }
  static ORIEL_DEVICE_FN std::uint64_t broadcast(std::uint64_t value) {
    return arch::warp_broadcast(value);
  }
};

/// All threads of a CTA (thread block) of any shape.
struct Cta {
  static ORIEL_DEVICE_FN std::uint32_t rank() { return arch::cta_thread_rank(); }
  static ORIEL_DEVICE_FN std::uint32_t size() { return arch::cta_thread_count(); }
  static ORIEL_DEVICE_FN void sync() { arch::cta_sync(); }
  static ORIEL_DEVICE_FN bool any(bool mine) { return arch::cta_any(mine); }
  static ORIEL_DEVICE_FN std::uint64_t broadcast(std::uint64_t value) {
    return arch::cta_broadcast(value);
  }
};

}  // namespace oriel::device
