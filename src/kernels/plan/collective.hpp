// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace oriel::kernels {

enum class Collective : std::uint8_t {
  all_reduce = 0,
  all_gather = 1,
  reduce_scatter = 2,
  broadcast = 3,
  reduce = 4,
  all_to_all = 5,
  gather = 6,
  scatter = 7,
};
inline constexpr int kCollectiveCount = 8;

/// Returns the name for texts such as "an all-reduce" and "a broadcast".
constexpr const char* name_of(Collective collective) {
  constexpr const char* kNames[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast",
                                    "reduce",     "all-to-all", "gather",         "scatter"};
  return static_cast<int>(collective) < kCollectiveCount ? kNames[static_cast<int>(collective)]
                                                         : "unknown collective";
}
/// Returns whether the collective combines elements with an operation.
constexpr bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}
/// Returns whether every rank gets all results, unlike in a reduce-scatter. Only for all-reduces,
/// all-gathers and reduce-scatters.
constexpr bool distributes(Collective collective) {
  return collective != Collective::reduce_scatter;
}
/// Returns whether one rank, the root, has another role than the others.
constexpr bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}
/// Returns whether the send buffer holds a block for each rank.
constexpr bool sends_blocks(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::all_to_all ||
         collective == Collective::scatter;
}
/// Returns whether the receive buffer holds a block of each rank.
constexpr bool receives_blocks(Collective collective) {
  return collective == Collective::all_gather || collective == Collective::all_to_all ||
         collective == Collective::gather;
}

}  // namespace oriel::kernels
