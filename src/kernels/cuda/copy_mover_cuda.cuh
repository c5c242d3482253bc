// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/copy_bytes.cuh"
#include "kernels/plan/arguments.hpp"

namespace oriel::kernels::detail {

/// Moves the elements of a collective that copies, with all threads of a group. Has the functions
/// of CudaMover that streams call, and knows only how long an element is.
template <class Group, int kMostRanks>
class CudaCopyMover {
 public:
  static constexpr bool kPulls = false;
  static constexpr bool kBroadcasts = true;
  __device__ static std::uint64_t element_bytes(const AllReduceArguments& arguments) {
    return size_of(arguments.type);
  }

  __device__ __forceinline__ explicit CudaCopyMover(const AllReduceArguments& arguments)
      : arguments_(arguments), element_bytes_(element_bytes(arguments)) {}

  __device__ __forceinline__ void begin() const {}

  /// A broadcast: stores `count` elements of the root's input from `first` on where a peer wants
  /// them, and into the root's own output.
  __device__ __forceinline__ void send(std::byte* place, std::uint64_t first,
                                       std::uint64_t count) const {
    const std::byte* const from = arguments_.input + first * element_bytes_;
    std::byte* const own = arguments_.output + first * element_bytes_;
    std::byte* const targets[] = {place, own == from ? nullptr : own};
    copy_to_all(targets, from, count * element_bytes_);
  }
  /// Stores `count` elements of a ring slot into the output from `first` on.
  __device__ __forceinline__ void copy_out(std::uint64_t first, const std::byte* slot,
                                           std::uint64_t count) const {
    copy_bytes<Group>(arguments_.output + first * element_bytes_, slot, count * element_bytes_);
  }
  /// Stores `count` elements at `from` at the target of each rank that has one.
  template <class Target>
  __device__ __forceinline__ void pass_on(const Target& target, const std::byte* from,
                                          std::uint64_t count) const {
    std::byte* targets[kMostRanks];
#pragma unroll
    for (int i = 0; i < kMostRanks; ++i) {
      targets[i] = i < arguments_.ranks ? target(to_the_right(i)) : nullptr;
    }
    copy_to_all(targets, from, count * element_bytes_);
  }
  /// Stores `count` elements of each rank's source at its target, if it has one.
  template <class Target, class Source>
  __device__ __forceinline__ void distribute(const Target& target, const Source& source,
                                             std::uint64_t count) const {
    std::byte* targets[kMostRanks];
    const std::byte* sources[kMostRanks];
#pragma unroll
    for (int i = 0; i < kMostRanks; ++i) {
      targets[i] = i < arguments_.ranks ? target(to_the_right(i)) : nullptr;
      sources[i] = targets[i] != nullptr ? source(to_the_right(i)) : nullptr;
    }
    copy_each(targets, sources, count * element_bytes_);
  }

 private:
  static constexpr int kUnroll = 8;
  static constexpr int kUnrollEach = 16 / kMostRanks;

  /// Each rank begins with itself and goes to its right, so that not all store to one at once.
  __device__ __forceinline__ int to_the_right(int i) const {
    const int rank = arguments_.rank + i;
    return rank < arguments_.ranks ? rank : rank - arguments_.ranks;
  }

  /// Copies to all targets that are not null. Reads the source once where all are aligned, as ring
  /// slots and most buffers are.
  template <int kTargets>
  __device__ __forceinline__ void copy_to_all(std::byte* const (&targets)[kTargets],
                                              const std::byte* from, std::uint64_t bytes) const {
    auto addresses = reinterpret_cast<std::uintptr_t>(from);
#pragma unroll
    for (int k = 0; k < kTargets; ++k) addresses |= reinterpret_cast<std::uintptr_t>(targets[k]);
    const std::uint64_t whole = addresses % 16 == 0 ? bytes / 16 : 0;
    const auto* const packs = reinterpret_cast<const device::Pack*>(from);
    const std::uint64_t threads = Group::size();
    for (std::uint64_t i = Group::rank(); i < whole; i += kUnroll * threads) {
      device::Pack values[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * threads < whole) {
          values[u] = device::Memory::load_streaming(packs + i + u * threads);
        }
      }
#pragma unroll
      for (int k = 0; k < kTargets; ++k) {
        if (targets[k] == nullptr) continue;
        auto* const to = reinterpret_cast<device::Pack*>(targets[k]);
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (i + u * threads < whole) {
            device::Memory::store<device::Order::weak>(to + i + u * threads, values[u]);
          }
        }
      }
    }
    const std::uint64_t done = whole * 16;
    if (done == bytes) return;
#pragma unroll
    for (int k = 0; k < kTargets; ++k) {
      if (targets[k] != nullptr) copy_rest(targets[k] + done, from + done, bytes - done);
    }
  }
  /// Copies each source to its target, where that is not null, all of them at once.
  __device__ __forceinline__ void copy_each(std::byte* const (&targets)[kMostRanks],
                                            const std::byte* const (&sources)[kMostRanks],
                                            std::uint64_t bytes) const {
    std::uintptr_t addresses = 0;
#pragma unroll
    for (int k = 0; k < kMostRanks; ++k) {
      addresses |= reinterpret_cast<std::uintptr_t>(targets[k]) |
                   reinterpret_cast<std::uintptr_t>(sources[k]);
    }
    const std::uint64_t whole = addresses % 16 == 0 ? bytes / 16 : 0;
    const std::uint64_t threads = Group::size();
    for (std::uint64_t i = Group::rank(); i < whole; i += kUnrollEach * threads) {
      device::Pack values[kMostRanks][kUnrollEach];
#pragma unroll
      for (int k = 0; k < kMostRanks; ++k) {
        const auto* const from = reinterpret_cast<const device::Pack*>(sources[k]);
#pragma unroll
        for (int u = 0; u < kUnrollEach; ++u) {
          if (targets[k] != nullptr && i + u * threads < whole) {
            values[k][u] = device::Memory::load_streaming(from + i + u * threads);
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kMostRanks; ++k) {
        auto* const to = reinterpret_cast<device::Pack*>(targets[k]);
#pragma unroll
        for (int u = 0; u < kUnrollEach; ++u) {
          if (targets[k] != nullptr && i + u * threads < whole) {
            device::Memory::store<device::Order::weak>(to + i + u * threads, values[k][u]);
          }
        }
      }
    }
    const std::uint64_t done = whole * 16;
    if (done == bytes) return;
#pragma unroll
    for (int k = 0; k < kMostRanks; ++k) {
      if (targets[k] != nullptr) copy_rest(targets[k] + done, sources[k] + done, bytes - done);
    }
  }
  static __device__ __noinline__ void copy_rest(std::byte* to, const std::byte* from,
                                                std::uint64_t bytes) {
    copy_bytes<Group>(to, from, bytes);
  }

  const AllReduceArguments& arguments_;
  std::uint64_t element_bytes_;
};

}  // namespace oriel::kernels::detail
