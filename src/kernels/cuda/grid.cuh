// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/wait.hpp"

#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {

/// All threads of a kernel's grid as one group (oriel/device/group.hpp). Its CTAs have to run at
/// once, and no other grid may use the same barrier at the same time.
///
/// The barrier's word counts CTAs that have come, in such steps that its highest bit turns over
/// when the last one comes, whatever it was before: it needs no clearing between kernels, which may
/// have different numbers of CTAs. The idea is that of the grid groups of CUDA's cooperative
/// groups. What any() has once said true it says for ever, for then the communicator has failed.
///
/// Once the communicator is aborted waits for other CTAs end, though some may never come: any() is
/// then true, sync() returns with leads() false, and what was to happen before may not have. A CTA
/// that has given up comes no more, so that nobody waits in vain for fewer than all, nor meets too
/// few.
class Grid {
 public:
  /// Those that talk to the peers: the first warp, of one-dimensional CTAs of whole warps.
  using Lead = device::Warp;

  /// `abort` is the communicator's word.
  __device__ __forceinline__ Grid(GridBarrier* barrier, const std::uint32_t* abort)
      : barrier_(barrier), abort_(abort) {}

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
  __device__ __forceinline__ bool meets() const { return !gave_up_ && meet(barrier_, abort_); }

  /// By each CTA's thread 0. No deadline: whoever waits for something outside comes here when that
  /// wait has been given up, at the latest. Out of line, for it is called from many places and
  /// takes a trip to the L2 cache anyway.
  static __device__ __noinline__ bool meet(GridBarrier* barrier, const std::uint32_t* abort) {
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
    control.abort = abort;
    return device::wait_until<Memory>(all_came, control, {}) == device::WaitOutcome::ready;
  }

  GridBarrier* barrier_;
  const std::uint32_t* abort_;
  bool gave_up_ = false;  // the same for all threads of a CTA
};

}  // namespace oriel::kernels
