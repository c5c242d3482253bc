// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/memory.hpp"

/// Cooperative groups: threads that execute one operation together. Every thread of a group calls
/// each function that takes the group, with the same arguments. On the CPU each group has one
/// thread.
/// - rank(): returns this thread's index, 0 to size() - 1.
/// - size(): returns the number of threads.
/// - sync(): returns after every thread has called it. Accesses before it in any thread of the
///   group happen before accesses after it in any other thread. It does not wait for threads that
///   have left the kernel.
/// - any(mine): calls sync(), so it orders memory as well; returns true in all threads if `mine` is
///   true in at least one. It spreads the outcome of an aborted wait.
/// - broadcast(value): returns thread 0's value in all threads. Orders no memory.
///
/// No function is blocking (wait.hpp): sync(), any() and broadcast() wait only for threads of the
/// group. All functions but sync(), any() and sync_among() order no memory.
///
/// Example: returns in all threads of a CTA whether any of the words is nonzero.
/// ```cpp
/// template <class Group>
/// ORIEL_DEVICE_FN bool has_nonzero(Group group, const std::uint32_t* words, std::uint32_t count) {
///   bool mine = false;
///   for (std::uint32_t i = group.rank(); i < count; i += group.size()) mine |= words[i] != 0;
///   return group.any(mine);
/// }
/// ORIEL_DEVICE_FN bool cta_has_nonzero(const std::uint32_t* words, std::uint32_t count) {
///   return has_nonzero(oriel::device::Cta{}, words, count);
/// }
/// ```
namespace oriel::device {

/// Group of one thread.
struct Thread {
  static ORIEL_DEVICE_FN std::uint32_t rank() { return 0; }    ///< returns 0
  static ORIEL_DEVICE_FN std::uint32_t size() { return 1; }    ///< returns 1
  static ORIEL_DEVICE_FN void sync() {}                        ///< does nothing
  static ORIEL_DEVICE_FN bool any(bool mine) { return mine; }  ///< returns `mine`
  /// Returns `value`.
  static ORIEL_DEVICE_FN std::uint64_t broadcast(std::uint64_t value) { return value; }
};

/// Group of one thread that can cooperate with its warp. Threads of a warp that call the same
/// function together, each with its own arguments, share one atomic, one hand-over and one
/// doorbell. This is the warp-aggregated atomic (Adinetz, 2014). Only for functions whose comments
/// mention Lanes.
struct Lanes : Thread {
  /// Returns this thread's index in its warp, 0 to most() - 1.
  static ORIEL_DEVICE_FN std::uint32_t lane() { return arch::warp_lane(); }
  /// Returns the maximum number of lanes: 32 on a GPU, 1 on a CPU.
  static ORIEL_DEVICE_FN std::uint32_t most() { return arch::warp_size(); }
  /// Returns a mask of the lanes that make this call together with the same key. Lanes that make
  /// the call later may be missing.
  static ORIEL_DEVICE_FN std::uint32_t together(std::uint64_t key) {
    return arch::lanes_together(key);
  }
  /// Returns how many of `lanes`, a mask, precede this lane.
  static ORIEL_DEVICE_FN std::uint32_t before(std::uint32_t lanes) {
    return arch::lanes_before(lanes);
  }
  /// Returns the number of `lanes`.
  static ORIEL_DEVICE_FN std::uint32_t count(std::uint32_t lanes) {
    return arch::lanes_count(lanes);
  }
  /// Synchronises `lanes`, all of which call it, and orders memory as sync() does.
  static ORIEL_DEVICE_FN void sync_among(std::uint32_t lanes) { arch::lanes_sync(lanes); }
  /// Returns the value of the first of `lanes`, all of which call it. Orders no memory.
  static ORIEL_DEVICE_FN std::uint64_t broadcast_among(std::uint32_t lanes, std::uint64_t value) {
    return arch::lanes_broadcast(lanes, value);
  }
};

/// Group of the 32 threads of a warp, all of them active.
struct Warp {
  /// Returns this thread's index in its warp.
  static ORIEL_DEVICE_FN std::uint32_t rank() { return arch::warp_lane(); }
  /// Returns 32 on a GPU, 1 on a CPU.
  static ORIEL_DEVICE_FN std::uint32_t size() { return arch::warp_size(); }
  /// Synchronises the warp.
  static ORIEL_DEVICE_FN void sync() { arch::warp_sync(); }
  /// Synchronises the warp, then votes.
  static ORIEL_DEVICE_FN bool any(bool mine) { return arch::warp_any(mine); }
  /// Returns lane 0's value.
  static ORIEL_DEVICE_FN std::uint64_t broadcast(std::uint64_t value) {
    return arch::warp_broadcast(value);
  }
};

/// Group of all threads of a CTA (thread block) of any shape.
struct Cta {
  /// Returns this thread's index in its CTA. Neighbours in x have consecutive indices.
  static ORIEL_DEVICE_FN std::uint32_t rank() { return arch::cta_thread_rank(); }
  /// Returns the number of threads of a CTA, with those that have left the kernel.
  static ORIEL_DEVICE_FN std::uint32_t size() { return arch::cta_thread_count(); }
  /// Synchronises the CTA.
  static ORIEL_DEVICE_FN void sync() { arch::cta_sync(); }
  /// Synchronises the CTA and votes.
  static ORIEL_DEVICE_FN bool any(bool mine) { return arch::cta_any(mine); }
  /// Returns thread 0's value. Takes two barriers on a GPU.
  static ORIEL_DEVICE_FN std::uint64_t broadcast(std::uint64_t value) {
    return arch::cta_broadcast(value);
  }
};

}  // namespace oriel::device
