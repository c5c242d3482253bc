// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/memory.hpp"

/// Cooperative groups: threads that execute one operation together. Every thread of a group calls a
/// function that takes a Group, with the same arguments. On the CPU each group has one thread.
/// - rank(): returns this thread's index, 0 to size() - 1.
/// - size(): returns the number of threads.
/// - sync(): returns after every thread has called it. Accesses before it in any thread of the
///   group happen before accesses after it in any other thread. It does not wait for threads that
///   have left the kernel.
/// - any(mine): calls sync(); returns true in all threads if `mine` is true in at least one. It
///   spreads the outcome of an aborted wait.
/// - broadcast(value): returns thread 0's value in all threads. Orders no memory.
namespace oriel::device {

/// Group of one thread.
struct Thread {
  static ORIEL_DEVICE_FN std::uint32_t rank() { return 0; }
  static ORIEL_DEVICE_FN std::uint32_t size() { return 1; }
  static ORIEL_DEVICE_FN void sync() {}
  static ORIEL_DEVICE_FN bool any(bool mine) { return mine; }
  static ORIEL_DEVICE_FN std::uint64_t broadcast(std::uint64_t value) { return value; }
};

/// Group of one thread that can cooperate with its warp. Threads of a warp that call the same
/// function together, each with its own arguments, share one atomic, one hand-over and one
/// doorbell. Only for functions whose comments mention Lanes.
struct Lanes : Thread {
  static ORIEL_DEVICE_FN std::uint32_t lane() { return arch::warp_lane(); }
  /// Returns the maximum number of lanes.
  static ORIEL_DEVICE_FN std::uint32_t most() { return arch::warp_size(); }
  /// Returns a mask of the lanes that make this call together with the same key. Lanes that make
  /// the call later may be missing.
  static ORIEL_DEVICE_FN std::uint32_t together(std::uint64_t key) {
    return arch::lanes_together(key);
  }
  /// Returns how many of `lanes` precede this lane; count() returns how many there are.
  static ORIEL_DEVICE_FN std::uint32_t before(std::uint32_t lanes) {
    return arch::lanes_before(lanes);
  }
  static ORIEL_DEVICE_FN std::uint32_t count(std::uint32_t lanes) {
    return arch::lanes_count(lanes);
  }
  /// Synchronise or broadcast among `lanes`, all of which call it. The broadcast value is that of
  /// the first lane.
  static ORIEL_DEVICE_FN void sync_among(std::uint32_t lanes) { arch::lanes_sync(lanes); }
  static ORIEL_DEVICE_FN std::uint64_t broadcast_among(std::uint32_t lanes, std::uint64_t value) {
    return arch::lanes_broadcast(lanes, value);
  }
};

/// Group of the 32 threads of a warp, all of them active.
struct Warp {
  static ORIEL_DEVICE_FN std::uint32_t rank() { return arch::warp_lane(); }
  static ORIEL_DEVICE_FN std::uint32_t size() { return arch::warp_size(); }
  static ORIEL_DEVICE_FN void sync() { arch::warp_sync(); }
  static ORIEL_DEVICE_FN bool any(bool mine) { return arch::warp_any(mine); }
  static ORIEL_DEVICE_FN std::uint64_t broadcast(std::uint64_t value) {
    return arch::warp_broadcast(value);
  }
};

/// Group of all threads of a CTA (thread block) of any shape.
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
