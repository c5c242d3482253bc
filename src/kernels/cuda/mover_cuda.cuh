// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/algorithms/payload.hpp"
#include "kernels/algorithms/reduction.hpp"

namespace oriel::kernels {

/// Moves and reduces elements with all threads of a group, 16 bytes at a time.
template <class T, Family kFamily, int kRanks, class Group>
class CudaMover {
 public:
  static constexpr bool kPulls = false;
  static constexpr bool kBroadcasts = false;
  static constexpr std::uint64_t element_bytes(const AllReduceArguments&) { return sizeof(T); }

  __device__ __forceinline__ explicit CudaMover(const AllReduceArguments& arguments)
      : arguments_(arguments), reduction_(arguments) {}

  /// After grid_dependency_wait(), before all else: see FamilyReduction::begin.
  __device__ __forceinline__ void begin() { reduction_.begin(arguments_); }

  /// Stores `count` elements of the input from `first` on, scaled if need be, into a ring slot.
  __device__ __forceinline__ void send(std::byte* slot, std::uint64_t first, std::uint64_t count) {
    copy(slot, arguments_.input + first * sizeof(T), count,
         [&](const auto& payload) { return reduction_.scale(payload); });
  }

  /// Stores `count` elements of a ring slot into the output from `first` on.
  __device__ __forceinline__ void copy_out(std::uint64_t first, const std::byte* slot,
                                           std::uint64_t count) {
    copy(arguments_.output + first * sizeof(T), slot, count,
         [](const auto& payload) { return payload; });
  }

  /// Reduces `count` elements of all ranks' sources into the targets of `targets` ranks: all, or
  /// this one alone.
  template <class Source, class Target>
  __device__ __forceinline__ void reduce(const Source& source, const Target& target, int targets,
                                         std::uint64_t count) {
    // Ring slots are aligned; the buffers are so or not alike on all ranks that share an offset.
    const auto addresses = reinterpret_cast<std::uintptr_t>(source(arguments_.rank)) |
                           reinterpret_cast<std::uintptr_t>(target(arguments_.rank));
    const std::uint64_t whole = addresses % 16 == 0 ? count / Buffer::kElements : 0;
    reduce_packs(source, target, targets, whole);
    reduce_rest(source, target, targets, whole, count);
  }

 private:
  using Buffer = UserBuffer<T, 16>;
  using Value = typename Buffer::Value;
  static constexpr int kMaxRanks = kRanks > 0 ? kRanks : 8;
  // Eight loads in flight, from two ranks or four.
  static constexpr int kUnroll = kRanks == 2 ? 4 : kRanks == 4 ? 2 : 1;
  static constexpr int kCopyUnroll = 8;

  __device__ __forceinline__ int ranks() const { return kRanks > 0 ? kRanks : arguments_.ranks; }

  /// The aligned payloads 0 to `whole` - 1.
  template <class Source, class Target>
  __device__ __forceinline__ void reduce_packs(const Source& source, const Target& target,
                                               int targets_used, std::uint64_t whole) const {
    const int me = arguments_.rank;
    const device::Pack* sources[kMaxRanks];
    device::Pack* targets[kMaxRanks];
#pragma unroll
    for (int i = 0; i < kMaxRanks; ++i) {
      if (kRanks == 0 && i >= ranks()) break;
      sources[i] = reinterpret_cast<const device::Pack*>(source(i));
      // Each rank begins with itself and goes to its right, so that not all store to one at once.
      targets[i] =
          reinterpret_cast<device::Pack*>(target(me + i < ranks() ? me + i : me + i - ranks()));
    }
    const std::uint64_t threads = Group::size();
    for (std::uint64_t i = Group::rank(); i < whole; i += kUnroll * threads) {
      Value values[kUnroll][kMaxRanks];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * threads >= whole) continue;
#pragma unroll
        for (int rank = 0; rank < kMaxRanks; ++rank) {
          if (kRanks == 0 && rank >= ranks()) break;
          values[u][rank] = __builtin_bit_cast(
              Value, device::Memory::load_streaming(sources[rank] + i + u * threads));
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (i + u * threads >= whole) continue;
        const auto result = __builtin_bit_cast(
            device::Pack, fold_ranks<kRanks, 16>(reduction_, ranks(), [&](int rank) {
              return rank == me ? reduction_.scale(values[u][rank]) : values[u][rank];
            }));
#pragma unroll
        for (int k = 0; k < kMaxRanks; ++k) {
          if (k >= targets_used) break;
          device::Memory::store<device::Order::weak>(targets[k] + i + u * threads, result);
        }
      }
    }
  }

  /// What is not aligned, or not a whole payload: any number of ranks, one payload at a time.
  template <class Source, class Target>
  __device__ __forceinline__ void reduce_rest(const Source& source, const Target& target,
                                              int targets, std::uint64_t first,
                                              std::uint64_t count) const {
    const std::uint64_t payloads = (count + Buffer::kElements - 1) / Buffer::kElements;
#pragma unroll 1
    for (std::uint64_t i = first + Group::rank(); i < payloads; i += Group::size()) {
      const auto result = fold_ranks<0, 16>(reduction_, ranks(), [&](int rank) {
        const Value value = Buffer(source(rank), count).load(i);
        return rank == arguments_.rank ? reduction_.scale(value) : value;
      });
#pragma unroll 1
      for (int rank = 0; rank < ranks(); ++rank) {
        if (targets == 1 && rank != arguments_.rank) continue;
        Buffer(target(rank), count).store(i, result);
      }
    }
  }

  template <class Change>
  __device__ __forceinline__ void copy(std::byte* target, const std::byte* source,
                                       std::uint64_t count, const Change& change) const {
    const auto addresses =
        reinterpret_cast<std::uintptr_t>(source) | reinterpret_cast<std::uintptr_t>(target);
    const std::uint64_t whole = addresses % 16 == 0 ? count / Buffer::kElements : 0;
    const auto* from = reinterpret_cast<const device::Pack*>(source);
    auto* to = reinterpret_cast<device::Pack*>(target);
    const std::uint64_t threads = Group::size();
    for (std::uint64_t i = Group::rank(); i < whole; i += kCopyUnroll * threads) {
      Value values[kCopyUnroll];
#pragma unroll
      for (int u = 0; u < kCopyUnroll; ++u) {
        if (i + u * threads >= whole) continue;
        values[u] =
            __builtin_bit_cast(Value, device::Memory::load_streaming(from + i + u * threads));
      }
#pragma unroll
      for (int u = 0; u < kCopyUnroll; ++u) {
        if (i + u * threads >= whole) continue;
        device::Memory::store<device::Order::weak>(
            to + i + u * threads, __builtin_bit_cast(device::Pack, change(values[u])));
      }
    }
    const Buffer rest_from(source, count);
    const Buffer rest_to(target, count);
#pragma unroll 1
    for (std::uint64_t i = whole + Group::rank(); i < rest_from.payloads(); i += threads) {
      rest_to.store(i, change(rest_from.load(i)));
    }
  }

  const AllReduceArguments& arguments_;
  FamilyReduction<T, kFamily> reduction_;
};

}  // namespace oriel::kernels
