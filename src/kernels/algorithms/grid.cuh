// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"

#include "kernels/hierarchy.hpp"

namespace oriel::kernels {

/// All threads of a kernel's grid as one group (oriel/device/group.hpp). Its CTAs have to run at
/// once, and no other grid may use the same barrier at the same time.
///
/// The barrier's word counts CTAs that have come, in such steps that its highest bit turns over
/// when the last one comes, whatever it was before: it needs no clearing between kernels, which may
/// have different numbers of CTAs. The idea is that of the grid groups of CUDA's cooperative
/// groups. What any() has once said true it says for ever, for then the communicator has failed.
class Grid {
 public:
  /// Those that talk to the peers: the first warp, of one-dimensional CTAs of whole warps.
  using Lead = device::Warp;

  __device__ __forceinline__ explicit Grid(GridBarrier* barrier) : barrier_(barrier) {}

  static __device__ __forceinline__ std::uint32_t rank() {
    return blockIdx.x * blockDim.x + threadIdx.x;
  }
  static __device__ __forceinline__ std::uint32_t size() { return gridDim.x * blockDim.x; }
  static __device__ __forceinline__ bool leads() { return rank() < 32; }

  __device__ __forceinline__ void sync() const {
    device::Cta::sync();
    if (gridDim.x == 1) return;
    meet();
    device::Cta::sync();
  }

  __device__ __forceinline__ bool any(bool mine) const {
    const bool here = device::Cta::any(mine);
    if (gridDim.x == 1) return here;
    if (threadIdx.x == 0 && here) {
      device::Memory::store<device::Order::relaxed, device::Scope::device>(&barrier_->failed, 1u);
    }
    meet();
    bool there = false;
    if (threadIdx.x == 0) {
      there = device::Memory::load<device::Order::relaxed, device::Scope::device>(
                  &barrier_->failed) != 0;
    }
    return device::Cta::any(there);
  }

 private:
  /// By each CTA's thread 0. No deadline: whoever waits for something outside comes here when that
  /// wait has been given up, at the latest.
  __device__ __forceinline__ void meet() const {
    using device::Memory;
    using device::Order;
    using device::Scope;
    if (threadIdx.x != 0) return;
    constexpr std::uint32_t kTurn = 0x80000000u;
    const std::uint32_t step = blockIdx.x == 0 ? kTurn - (gridDim.x - 1) : 1;
    const std::uint32_t before =
        Memory::fetch_add<Order::acq_rel, Scope::device>(&barrier_->arrived, step);
    while (((before ^ Memory::load<Order::acquire, Scope::device>(&barrier_->arrived)) & kTurn) ==
           0) {
    }
  }

  GridBarrier* barrier_;
};

}  // namespace oriel::kernels
