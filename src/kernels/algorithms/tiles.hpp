// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/rounding.hpp"

/// Divides units (16-byte words, say) that lie side by side among the threads of a group. Each
/// thread takes kUnroll units at a time, so that kUnroll loads are in flight before the first
/// store.
///
/// The units of one warp are neighbours: unit u of a thread lies a constant number of bytes behind
/// unit 0. Loads and stores encode this distance in the instruction. So a thread keeps one address
/// for a buffer instead of kUnroll, and checks once whether all its units exist.
///
/// The size of a group is known only at run time. With distances of a whole group, loops over
/// several buffers did not fit into registers (docs/notes/streams.md).
namespace oriel::kernels {

inline constexpr std::uint32_t kTileWarp = 32;

/// Tile of one thread whose units all exist.
template <int kUnrolled>
struct WholeTile {
  static constexpr int kUnits = kUnrolled;
  std::uint64_t first;

  ORIEL_DEVICE_FN std::uint64_t at(int u) const {
    return first + static_cast<std::uint32_t>(u) * kTileWarp;
  }
  ORIEL_DEVICE_FN static constexpr bool has(int /*u*/) { return true; }
};

/// Tile of one thread in which units of the upper half may lie behind the end. The units are dealt
/// out one by one, so that all threads have about as many.
template <int kUnrolled>
struct LastTile {
  static constexpr int kUnits = kUnrolled;
  std::uint64_t first;
  std::uint64_t count;
  std::uint32_t threads;

  /// Returns the index of unit `u`. If unit `u` does not exist, returns the first index, so that
  /// loads need no condition.
  ORIEL_DEVICE_FN std::uint64_t at(int u) const {
    const std::uint64_t unit = first + std::uint64_t{threads} * static_cast<std::uint32_t>(u);
    return has(u) ? unit : first;
  }
  ORIEL_DEVICE_FN bool has(int u) const {
    return u < device::divide_up(kUnits, 2) ||
           first + std::uint64_t{threads} * static_cast<std::uint32_t>(u) < count;
  }
};

namespace detail {
/// Moves the units from `first` on, with as few units for each thread as suffice (at most kUnroll).
template <int kUnroll, class Move>
ORIEL_DEVICE_FN void move_last(std::uint64_t first, std::uint64_t count, std::uint32_t rank,
                               std::uint32_t threads, const Move& move) {
  if constexpr (kUnroll > 1) {
    constexpr std::uint32_t kHalf = kUnroll / 2;
    if (count - first <= std::uint64_t{kHalf} * threads) {
      return move_last<kHalf>(first, count, rank, threads, move);
    }
  }
  if (first + rank < count) move(LastTile<kUnroll>{first + rank, count, threads});
}
}  // namespace detail

/// Calls `move(tile)` until the group has had each of `count` units once. All threads of the group
/// must call; the group's size is a multiple of 32. kUnroll is a power of two. `move` accepts any
/// tile: it loads the units at(u) for all u below kUnits, and stores those for which has(u) holds.
template <class Group, int kUnroll, class Move>
ORIEL_DEVICE_FN void for_each_tile(std::uint64_t count, const Move& move) {
  static_assert((kUnroll & (kUnroll - 1)) == 0);
  const std::uint32_t rank = Group::rank();
  const std::uint32_t threads = Group::size();
  const std::uint64_t round = std::uint64_t{kUnroll} * threads;
  const std::uint32_t own = rank / kTileWarp * (kUnroll * kTileWarp) + rank % kTileWarp;
  std::uint64_t first = 0;
  for (; first + round <= count; first += round) move(WholeTile<kUnroll>{first + own});
  if (first < count) detail::move_last<kUnroll>(first, count, rank, threads, move);
}

}  // namespace oriel::kernels
