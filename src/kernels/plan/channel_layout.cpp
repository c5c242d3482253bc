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

/// Memory of a packet with 8 bytes of data. A slot has one more packet, for its header.
constexpr std::uint64_t kPacketBytes = 16;

/// Shape of a channel's packets. Packets take twice the bytes of their data, but need neither a
/// fence nor a separate flag.
struct PacketShape {
  std::uint32_t bytes = 0;       ///< data bytes of a slot, a multiple of 128; 0: no packets
  std::uint32_t most_bytes = 0;  ///< largest part of a message on one channel
  std::uint32_t least_channel_bytes = 1;  ///< see ChannelShape
  std::uint32_t depth = 1;                ///< slots, a power of two
};

/// Sizes that suit a backend. A warp moves 4 KiB with one batch of loads. A CPU thread copies slots
/// that stay in its second-level cache.
struct ChannelShape {
  std::uint32_t depth;
  std::uint32_t credit_step;  ///< 1 where a credit costs little compared with a slot
  std::uint64_t most_slot_bytes;
  std::uint32_t least_channel_bytes;
  std::uint64_t least_direct_bytes;
  PacketShape packets;
};
constexpr std::uint64_t kNever = ~std::uint64_t{0};
constexpr ChannelShape kGpuShape = {2,       1,        32 << 10,
                                    4 << 10, 64 << 10, {2 << 10, 4 << 10, 1 << 10, 4}};
constexpr ChannelShape kHostShape = {4, 1, 16 << 10, 64 << 10, 8 << 10, {128, 128, 128, 32}};
/// Between teams each slot takes two WQEs of a send queue: its data and its ready word. A credit
/// arrives one round trip later.
constexpr ChannelShape kFarGpuShape = {8, 4, 32 << 10, 32 << 10, kNever, {}};
constexpr ChannelShape kFarHostShape = {8, 4, 64 << 10, 64 << 10, kNever, {}};
/// Limits a step of a CPU thread to this many bytes, after which it serves its other peers.
constexpr std::uint32_t kDirectBytes = 1 << 20;
constexpr std::int32_t kFarGpuChannels = 4;
constexpr std::uint64_t kLeastFarSlot = 4 << 10;

constexpr std::uint64_t peers_of(int ranks) {
  return static_cast<std::uint64_t>(std::max(1, ranks - 1));
}

/// Returns the number of channels per peer inside a team. Each takes two warps, one that sends and
/// one that receives.
std::int32_t near_channels(std::uint64_t peers, int ctas) {
  const auto most = static_cast<std::uint64_t>(ctas);
  return static_cast<std::int32_t>(
      std::clamp<std::uint64_t>(kMaxWarps * most / (2 * peers), 1, 8 * most));
}

/// Returns how many rings per peer fit into `bytes`. A ring has slots of kLeastFarSlot bytes, and
/// as many for staging.
std::uint64_t far_rings(const ChannelShape& shape, std::uint64_t peers, std::uint64_t bytes) {
  return bytes / (peers * 2 * shape.depth * kLeastFarSlot);
}

/// Sets the fields of packets, except their offset. Returns the bytes that packets take.
std::uint64_t lay_out_packets(const ChannelShape& shape, ChannelLayout& layout) {
  const PacketShape& packets = shape.packets;
  if (packets.bytes == 0) return 0;
  const auto channels_per_peer = static_cast<std::uint64_t>(layout.channels_per_peer);
  layout.packet_bytes = packets.bytes;
  layout.packet_channel_bytes = packets.least_channel_bytes;
  layout.most_packet_bytes = channels_per_peer * packets.most_bytes;
  layout.least_direct_bytes = std::max(layout.least_direct_bytes, layout.most_packet_bytes + 1);
  layout.packet_depth = packets.depth;
  layout.packet_slot_bytes =
      static_cast<std::uint32_t>(round_up(packets.bytes * 2 + kPacketBytes, kSlotQuantum));
  return peers_of(layout.ranks) * channels_per_peer * layout.packet_depth *
         layout.packet_slot_bytes;
}

ChannelLayout lay_out(const ChannelShape& shape, int ranks, std::int32_t channels_per_peer,
                      bool staged, std::uint64_t offset, std::uint64_t bytes) {
  ChannelLayout layout;
  layout.ranks = ranks;
  layout.depth = shape.depth;
  layout.credit_step = shape.credit_step;
  layout.least_channel_bytes = shape.least_channel_bytes;
  layout.least_direct_bytes = shape.least_direct_bytes;
  layout.direct_bytes = kDirectBytes;
  layout.channels_per_peer = channels_per_peer;
  const std::uint64_t channels = peers_of(ranks) * static_cast<std::uint64_t>(channels_per_peer);
  layout.counters = offset;
  layout.credits = round_up(layout.counters + channels * sizeof(ChannelCounters), kAlignment);
  layout.ready = layout.credits + channels * kSectorBytes;
  static_assert(kGpuShape.depth * sizeof(std::uint64_t) <= kSectorBytes);
  static_assert(kHostShape.depth * sizeof(std::uint64_t) <= kSectorBytes);
  static_assert(kFarGpuShape.depth * sizeof(std::uint64_t) <= kSectorBytes);
  layout.packets = round_up(layout.ready + channels * kSectorBytes, kAlignment);
  layout.rings = round_up(layout.packets + lay_out_packets(shape, layout), kAlignment);
  const std::uint64_t used = layout.rings - offset;
  const std::uint64_t left = bytes > used ? bytes - used : 0;
  const std::uint64_t rings = staged ? 2 : 1;
  const std::uint64_t slot = round_down(left / rings / channels / layout.depth, kSlotQuantum);
  layout.slot_bytes =
      static_cast<std::uint32_t>(std::clamp(slot, kSlotQuantum, shape.most_slot_bytes));
  const std::uint64_t ring_bytes = channels * layout.depth * std::uint64_t{layout.slot_bytes};
  if (staged) layout.staging = layout.rings + ring_bytes;
  layout.total_bytes = round_up(used + rings * ring_bytes, kAlignment);
  return layout;
}

}  // namespace

ChannelLayout make_channel_layout(Backend backend, int ranks, int ctas, std::uint64_t offset,
                                  std::uint64_t bytes) {
  if (backend == Backend::host) return lay_out(kHostShape, ranks, 1, false, offset, bytes);
  // Where memory is short, half of it is for slots.
  constexpr std::uint64_t kShortBytes = 9 << 20;
  ChannelShape shape = kGpuShape;
  if (bytes < kShortBytes) shape.packets.depth /= 2;
  return lay_out(shape, ranks, near_channels(peers_of(ranks), ctas), false, offset, bytes);
}

ChannelLayout make_far_channel_layout(Backend backend, int ranks, std::uint64_t offset,
                                      std::uint64_t bytes) {
  ChannelShape shape = backend == Backend::host ? kFarHostShape : kFarGpuShape;
  const std::uint64_t peers = peers_of(ranks);
  while (shape.depth > 2 && far_rings(shape, peers, bytes) == 0) shape.depth /= 2;
  shape.credit_step = shape.depth / 2;
  const std::uint64_t most_channels = backend == Backend::host ? 1 : kFarGpuChannels;
  const std::uint64_t channels_per_peer =
      std::clamp<std::uint64_t>(far_rings(shape, peers, bytes), 1, most_channels);
  // Keeps slots of kLeastFarSlot bytes, since each slot costs two WQEs. Among very many ranks the
  // layout then exceeds `bytes`.
  const std::uint64_t least =
      peers * (2 * shape.depth * kLeastFarSlot + sizeof(ChannelCounters) + 2 * kSectorBytes) +
      2 * kAlignment;
  return lay_out(shape, ranks, static_cast<std::int32_t>(channels_per_peer), true, offset,
                 std::max(bytes, least));
}

}  // namespace oriel::kernels
