// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/memory.hpp"

namespace oriel::kernels {

namespace detail {

/// Copies `count` words with all threads of a group, kUnroll loads in flight in each.
template <class Group, class Word, int kUnroll>
__device__ __forceinline__ void copy_words(Word* to, const Word* from, std::uint64_t count) {
  const std::uint64_t threads = Group::size();
  for (std::uint64_t i = Group::rank(); i < count; i += kUnroll * threads) {
    Word words[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * threads < count) {
        words[u] = device::Memory::load_streaming(from + i + u * threads);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (i + u * threads < count) {
        device::Memory::store<device::Order::weak>(to + i + u * threads, words[u]);
      }
    }
  }
}

/// Copies bytes whose addresses have no alignment in common. Words of the source are joined from
/// two neighbours, so that each load and store has 4 bytes.
template <class Group>
__device__ __noinline__ void copy_unaligned(std::byte* to, const std::byte* from,
                                            std::uint64_t bytes) {
  const std::uint64_t threads = Group::size();
  const std::uint64_t head = -reinterpret_cast<std::uintptr_t>(to) & 3;
  if (bytes < 16) {
    for (std::uint64_t i = Group::rank(); i < bytes; i += threads) to[i] = from[i];
    return;
  }
  for (std::uint64_t i = Group::rank(); i < head; i += threads) to[i] = from[i];
  const auto source = reinterpret_cast<std::uintptr_t>(from + head);
  const unsigned shift = static_cast<unsigned>(source & 3) * 8;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(source & ~std::uintptr_t{3});
  auto* const target = reinterpret_cast<std::uint32_t*>(to + head);
  // The last word of the target is left to the bytes below: its right neighbour may not exist.
  const std::uint64_t count = (bytes - head) / 4 - 1;
  for (std::uint64_t i = Group::rank(); i < count; i += threads) {
    const std::uint32_t low = device::Memory::load_streaming(words + i);
    const std::uint32_t high = device::Memory::load_streaming(words + i + 1);
    device::Memory::store<device::Order::weak>(target + i, __funnelshift_r(low, high, shift));
  }
  for (std::uint64_t i = head + 4 * count + Group::rank(); i < bytes; i += threads) to[i] = from[i];
}

}  // namespace detail

/// Copies `bytes` bytes with all threads of a group; the ranges do not overlap. The widest accesses
/// that both addresses allow.
template <class Group>
__device__ __forceinline__ void copy_bytes(std::byte* to, const std::byte* from,
                                           std::uint64_t bytes) {
  constexpr int kUnroll = 8;
  const auto common = reinterpret_cast<std::uintptr_t>(to) ^ reinterpret_cast<std::uintptr_t>(from);
  if ((common & 3) != 0) return detail::copy_unaligned<Group>(to, from, bytes);
  const std::uint64_t quantum = (common & 15) == 0 ? 16 : 4;
  std::uint64_t head = -reinterpret_cast<std::uintptr_t>(to) & (quantum - 1);
  if (head > bytes) head = bytes;
  if (head > 0) {
    for (std::uint64_t i = Group::rank(); i < head; i += Group::size()) to[i] = from[i];
    to += head;
    from += head;
    bytes -= head;
  }
  const std::uint64_t words = bytes / quantum;
  if (quantum == 16) {
    detail::copy_words<Group, device::Pack, kUnroll>(
        reinterpret_cast<device::Pack*>(to), reinterpret_cast<const device::Pack*>(from), words);
  } else {
    detail::copy_words<Group, std::uint32_t, kUnroll>(
        reinterpret_cast<std::uint32_t*>(to), reinterpret_cast<const std::uint32_t*>(from), words);
  }
  for (std::uint64_t i = words * quantum + Group::rank(); i < bytes; i += Group::size()) {
    to[i] = from[i];
  }
}

}  // namespace oriel::kernels
