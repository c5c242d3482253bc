// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/wait.hpp"

#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {

/// All threads of a kernel's grid as one group (oriel/device/group.hpp). The CTAs of the grid must
/// run at once. No other grid may use the same barrier at the same time.
///
/// Barrier: CTAs add to the word `arrived` in such steps that its highest bit flips when the last
/// CTA arrives, whatever its value was before. So it needs no reset between kernels, which may have
/// different numbers of CTAs. The idea is that of the grid groups of CUDA's cooperative groups.
/// Once any() has returned true, it returns true for ever, because the communicator has then
/// failed.
///
/// Abort: once the communicator is aborted, waits for other CTAs end, though some CTAs may never
/// arrive. any() then returns true. sync() returns with leads() false, and earlier work of other
/// CTAs may be missing. A CTA that has given up does not arrive at later barriers. So no barrier
/// completes with fewer than all CTAs, and no CTA waits forever.
///
/// Timeout: the first barrier also ends by the timeout, and its stall record names the own rank.
/// Some CTAs may not start, for example because other kernels fill the GPU. After the first barrier
/// all CTAs run. A CTA that is late at a later barrier waits for a peer, and reports this peer
/// itself. A record of the own rank would hide that peer.
class Grid {
 public:
  /// Threads that communicate with the peers: the first warp of CTA 0. CTAs are one-dimensional and
  /// consist of whole warps.
  using Lead = device::Warp;

  /// `wait` must outlive this object and its copies. A kernel constructs one object. The object's
  /// first barrier comes before the kernel's first wait for a peer.
  __device__ __forceinline__ Grid(GridBarrier* barrier, const device::WaitControl& wait)
      : barrier_(barrier), wait_(&wait) {}

  static __device__ __forceinline__ std::uint32_t rank() {
    return blockIdx.x * blockDim.x + threadIdx.x;
  }
  static __device__ __forceinline__ std::uint32_t size() { return gridDim.x * blockDim.x; }
  __device__ __forceinline__ bool leads() const { return rank() < 32 && !gave_up_; }

  __device__ __forceinline__ void sync() {
    device::Cta::sync();
    if (gridDim.x == 1) return;
    gave_up_ = device::Cta::any(threadIdx.x == 0 && !meets());
  }

  __device__ __forceinline__ bool any(bool mine) {
    const bool here = device::Cta::any(mine);
    if (gridDim.x == 1) return here;
    if (threadIdx.x == 0 && here) {
      device::Memory::store<device::Order::relaxed, device::Scope::device>(&barrier_->failed, 1u);
    }
    bool there = false;
    if (threadIdx.x == 0) {
      there = !meets() || device::Memory::load<device::Order::relaxed, device::Scope::device>(
                              &barrier_->failed) != 0;
    }
    gave_up_ = device::Cta::any(there);
    return gave_up_;
  }

 private:
  /// Waits at the barrier; called by thread 0 of each CTA. Returns false if the wait was given up.
  __device__ __forceinline__ bool meets() {
    if (gave_up_) return false;
    const bool is_first = is_first_;
    is_first_ = false;
    return meet(barrier_, *wait_, is_first);
  }

  /// Waits at the barrier. Only the first barrier has a deadline of its own. At later ones every
  /// CTA arrives, at the latest when its wait for a peer has been given up. Out of line, because it
  /// is called from many places and its access to the L2 cache dominates the cost.
  static __device__ __noinline__ bool meet(GridBarrier* barrier, const device::WaitControl& wait,
                                           bool is_first) {
    using device::Memory;
    using device::Order;
    using device::Scope;
    constexpr std::uint32_t kTurn = 0x80000000u;
    const std::uint32_t step = blockIdx.x == 0 ? kTurn - (gridDim.x - 1) : 1;
    const std::uint32_t before =
        Memory::fetch_add<Order::acq_rel, Scope::device>(&barrier->arrived, step);
    const auto all_came = [&] {
      const auto now = Memory::load<Order::acquire, Scope::device>(&barrier->arrived);
      return ((before ^ now) & kTurn) != 0;
    };
    device::WaitControl control;
    control.abort = wait.abort;
    if (is_first) {
      control.stall = wait.stall;
      control.timeout_ns = wait.timeout_ns;
    }
    return device::wait_until<Memory>(all_came, control, {wait.self, 0}) ==
           device::WaitOutcome::ready;
  }

  GridBarrier* barrier_;
  const device::WaitControl* wait_;
  bool is_first_ = true;  // used by thread 0: the next barrier is the first
  bool gave_up_ = false;  // equal for all threads of a CTA
};

}  // namespace oriel::kernels
