// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/channel_layout.hpp"

#include <algorithm>

#include "base/alignment.hpp"
#include "kernels/plan/kernel_set.hpp"
#include "kernels/plan/layout.hpp"

namespace oriel::kernels {
namespace {

constexpr std::uint64_t kAlignment = 4096;
constexpr std::uint64_t kSlotQuantum = 128;

/// Sizes that suit a backend: a warp moves a slot of 4 KiB with one batch of loads; a CPU thread
/// copies slots that stay in its second-level cache.
struct ChannelShape {
  std::uint32_t depth;
  std::uint64_t most_slot_bytes;
  std::uint32_t least_lane_bytes;
};
constexpr ChannelShape kGpuShape = {4, 16 << 10, 4 << 10};
constexpr ChannelShape kHostShape = {8, 64 << 10, 64 << 10};

/// Each lane takes two warps of a CTA for each peer, one that sends and one that receives.
std::int32_t lanes_of_a_cta(std::uint64_t peers) {
  constexpr std::uint64_t kWarps = kMaxThreads / 32;
  return static_cast<std::int32_t>(std::clamp<std::uint64_t>(kWarps / (2 * peers), 1, 8));
}

}  // namespace

ChannelLayout make_channel_layout(Backend backend, int ranks, int ctas, std::uint64_t offset,
                                  std::uint64_t bytes) {
  const ChannelShape shape = backend == Backend::host ? kHostShape : kGpuShape;
  const auto peers = static_cast<std::uint64_t>(std::max(1, ranks - 1));
  ChannelLayout layout;
  layout.ranks = ranks;
  layout.depth = shape.depth;
  layout.least_lane_bytes = shape.least_lane_bytes;
  layout.lanes_per_cta = backend == Backend::host ? 1 : lanes_of_a_cta(peers);
  layout.lanes = layout.lanes_per_cta * (backend == Backend::host ? 1 : ctas);
  const std::uint64_t channels = peers * static_cast<std::uint64_t>(layout.lanes);
  layout.counters = offset;
  layout.credits = round_up(layout.counters + channels * sizeof(ChannelCounters), kAlignment);
  layout.ready = layout.credits + channels * kSectorBytes;
  static_assert(kGpuShape.depth * sizeof(std::uint64_t) <= kSectorBytes);
  static_assert(kHostShape.depth * sizeof(std::uint64_t) <= kSectorBytes);
  layout.rings = round_up(layout.ready + channels * kSectorBytes, kAlignment);
  const std::uint64_t used = layout.rings - offset;
  const std::uint64_t left = bytes > used ? bytes - used : 0;
  const std::uint64_t slot = round_down(left / channels / layout.depth, kSlotQuantum);
  layout.slot_bytes =
      static_cast<std::uint32_t>(std::clamp(slot, kSlotQuantum, shape.most_slot_bytes));
  layout.total_bytes =
      round_up(used + channels * layout.depth * std::uint64_t{layout.slot_bytes}, kAlignment);
  return layout;
}

}  // namespace oriel::kernels
