// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "oriel/device/memory.hpp"

#include "kernels/algorithms/tiles.hpp"

/// Copies with all threads of a group, 16 bytes per access at any alignment.
namespace oriel::kernels {

namespace detail {

/// Copies a few bytes one by one.
template <class Group>
ORIEL_DEVICE_FN void copy_singly(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  for (std::uint64_t i = Group::rank(); i < bytes; i += Group::size()) to[i] = from[i];
}

/// Returns the 16 bytes that begin at byte `shift` (below 16) of two neighbouring packs.
ORIEL_DEVICE_FN device::Pack join(const device::Pack& low, const device::Pack& high,
                                  std::uint32_t shift) {
  std::uint32_t words[8];
  ORIEL_DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    words[i] = low.word[i];
    words[i + 4] = high.word[i];
  }
  // Uses no run-time index, which would need local memory.
  ORIEL_DEVICE_UNROLL
  for (int i = 0; i < 6; ++i) {
    if ((shift & 8) != 0) words[i] = words[i + 2];
  }
  ORIEL_DEVICE_UNROLL
  for (int i = 0; i < 5; ++i) {
    if ((shift & 4) != 0) words[i] = words[i + 1];
  }
  device::Pack joined;
  ORIEL_DEVICE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t pair = std::uint64_t{words[i + 1]} << 32 | words[i];
    joined.word[i] = static_cast<std::uint32_t>(pair >> (shift & 3) * 8);
  }
  return joined;
}

/// Copies bytes to several targets that are equal modulo 16, at any alignment of the source. Loads
/// the packs of the source that overlap each pack of the targets. Loads no pack that lies partly
/// outside the source, because the source may fill its allocation.
template <class Group, int kCopies>
ORIEL_DEVICE_FN void copy_joined(std::byte* const (&to)[kCopies], const std::byte* from,
                                 std::uint64_t bytes) {
  constexpr int kUnroll = 4;
  constexpr std::uint64_t kLeastBytes = 96;
  const auto copy_few = [&](std::uint64_t first, std::uint64_t end) {
    ORIEL_DEVICE_UNROLL
    for (int k = 0; k < kCopies; ++k) copy_singly<Group>(to[k] + first, from + first, end - first);
  };
  if (bytes < kLeastBytes) return copy_few(0, bytes);
  std::uint64_t head = -reinterpret_cast<std::uintptr_t>(to[0]) & 15;
  const auto shift =
      static_cast<std::uint32_t>((reinterpret_cast<std::uintptr_t>(from) + head) & 15);
  if (head < shift) head += 16;
  copy_few(0, head);
  const std::uint64_t packs = (bytes - head + shift) / 16 - 1;
  const auto* const source = reinterpret_cast<const device::Pack*>(from + head - shift);
  for_each_tile<Group, kUnroll>(packs, [&](const auto& tile) {
    constexpr int kUnits = std::remove_cvref_t<decltype(tile)>::kUnits;
    device::Pack low[kUnits];
    device::Pack high[kUnits];
    ORIEL_DEVICE_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      low[u] = device::Memory::load_streaming(source + tile.at(u));
      high[u] = device::Memory::load_streaming(source + tile.at(u) + 1);
    }
    ORIEL_DEVICE_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      if (!tile.has(u)) continue;
      const device::Pack joined = join(low[u], high[u], shift);
      ORIEL_DEVICE_UNROLL
      for (int k = 0; k < kCopies; ++k) {
        device::Memory::store<device::Order::weak>(
            reinterpret_cast<device::Pack*>(to[k] + head) + tile.at(u), joined);
      }
    }
  });
  copy_few(head + 16 * packs, bytes);
}

/// Copies bytes whose addresses differ modulo 16.
template <class Group>
ORIEL_DEVICE_SLOW void copy_shifted(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  std::byte* const only[] = {to};
  copy_joined<Group>(only, from, bytes);
}

}  // namespace detail

/// Stores `change(pack)` of `count` packs. All threads of the group must call.
template <class Group, int kUnroll, class Change>
ORIEL_DEVICE_FN void copy_packs(device::Pack* to, const device::Pack* from, std::uint64_t count,
                                const Change& change) {
  for_each_tile<Group, kUnroll>(count, [&](const auto& tile) {
    constexpr int kUnits = std::remove_cvref_t<decltype(tile)>::kUnits;
    device::Pack packs[kUnits];
    ORIEL_DEVICE_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      packs[u] = device::Memory::load_streaming(from + tile.at(u));
    }
    ORIEL_DEVICE_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      if (!tile.has(u)) continue;
      device::Memory::store<device::Order::weak>(to + tile.at(u), change(packs[u]));
    }
  });
}

/// Copies `bytes` bytes; the ranges do not overlap. All threads of the group must call.
template <class Group>
ORIEL_DEVICE_FN void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  constexpr int kUnroll = 8;
  const auto differing =
      reinterpret_cast<std::uintptr_t>(to) ^ reinterpret_cast<std::uintptr_t>(from);
  if ((differing & 15) != 0) return detail::copy_shifted<Group>(to, from, bytes);
  std::uint64_t head = -reinterpret_cast<std::uintptr_t>(to) & 15;
  if (head > bytes) head = bytes;
  if (head > 0) {
    detail::copy_singly<Group>(to, from, head);
    to += head;
    from += head;
    bytes -= head;
  }
  const std::uint64_t packs = bytes / 16;
  const auto* const source = reinterpret_cast<const device::Pack*>(from);
  auto* const target = reinterpret_cast<device::Pack*>(to);
  copy_packs<Group, kUnroll>(target, source, packs, [](const device::Pack& pack) { return pack; });
  detail::copy_singly<Group>(to + 16 * packs, from + 16 * packs, bytes - 16 * packs);
}

/// Does what copy_bytes does, out of line, for kernels that copy in several places or rarely.
template <class Group>
ORIEL_DEVICE_SLOW void copy_out_of_line(std::byte* to, const std::byte* from, std::uint64_t bytes) {
  copy_bytes<Group>(to, from, bytes);
}

}  // namespace oriel::kernels
