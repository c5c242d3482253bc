// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"

/// How the threads of a group share units (16-byte words, say) that lie side by side. Each thread
/// takes kUnroll units at a time, so that kUnroll loads are under way before the first store.
///
/// The units of one warp are neighbours: unit u of a thread lies a constant number of bytes behind
/// unit 0. Loads and stores have that distance in the instruction, so a thread keeps one address
/// for a buffer and not kUnroll, and asks once whether all its units exist. With
/// distances of a whole group, which a kernel knows only when it runs, loops over several buffers
/// did not fit into registers (docs/notes/streams.md).
namespace oriel::kernels {

inline constexpr std::uint32_t kTileWarp = 32;

/// Units of one thread that all exist.
template <int kUnrolled>
struct WholeTile {
  static constexpr int kUnits = kUnrolled;
  std::uint64_t first;

  ORIEL_DEVICE_FN std::uint64_t at(int u) const {
    return first + static_cast<std::uint32_t>(u) * kTileWarp;
  }
  ORIEL_DEVICE_FN static constexpr bool has(int /*u*/) { return true; }
};

/// Units of one thread, of which those in the upper half may lie behind the end. They are dealt out
/// one by one, so that all threads have about as many.
template <int kUnrolled>
struct LastTile {
  static constexpr int kUnits = kUnrolled;
  std::uint64_t first;
  std::uint64_t count;
  std::uint32_t threads;

  /// For a unit that does not exist the first one, so that loads need no condition.
  ORIEL_DEVICE_FN std::uint64_t at(int u) const {
    const std::uint64_t unit = first + std::uint64_t{threads} * static_cast<std::uint32_t>(u);
    return has(u) ? unit : first;
  }
  ORIEL_DEVICE_FN bool has(int u) const {
    return u < (kUnits + 1) / 2 ||
           first + std::uint64_t{threads} * static_cast<std::uint32_t>(u) < count;
  }
};

namespace detail {
/// The units from `begun` on, kUnroll or fewer for each thread: as few as suffice.
template <int kUnroll, class Move>
ORIEL_DEVICE_FN void move_last(std::uint64_t begun, std::uint64_t count, std::uint32_t rank,
                               std::uint32_t threads, const Move& move) {
  if constexpr (kUnroll > 1) {
    constexpr std::uint32_t kHalf = kUnroll / 2;
    if (count - begun <= std::uint64_t{kHalf} * threads) {
      return move_last<kHalf>(begun, count, rank, threads, move);
    }
  }
  if (begun + rank < count) move(LastTile<kUnroll>{begun + rank, count, threads});
}
}  // namespace detail

/// Calls `move(tile)` until the group has had each of `count` units once. All threads of the group
/// call, whose size is a multiple of 32. kUnroll is a power of two. `move` takes any tile: it loads
/// the units at(u) for all u below kUnits, and stores those for which has(u) holds.
template <class Group, int kUnroll, class Move>
ORIEL_DEVICE_FN void for_each_tile(std::uint64_t count, const Move& move) {
  static_assert((kUnroll & (kUnroll - 1)) == 0);
  const std::uint32_t rank = Group::rank();
  const std::uint32_t threads = Group::size();
  const std::uint64_t round = std::uint64_t{kUnroll} * threads;
  const std::uint32_t own = rank / kTileWarp * (kUnroll * kTileWarp) + rank % kTileWarp;
  std::uint64_t begun = 0;
  for (; begun + round <= count; begun += round) move(WholeTile<kUnroll>{begun + own});
  if (begun < count) detail::move_last<kUnroll>(begun, count, rank, threads, move);
}

}  // namespace oriel::kernels
