// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/rounding.hpp"

#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/arguments.hpp"

/// Lays out the channels of a communicator in its scratch memory. A channel is a ring of slots from
/// one rank to another. The sender fills slots in the receiver's memory. The receiver returns
/// credits for the slots that it has emptied. So neither rank overwrites data that the other still
/// needs, and a sender waits only for its receiver.
///
/// Direct (rendezvous) messages: a message of `least_direct_bytes` or more between ranks of a team
/// bypasses the slots if possible. Its sender sends a request in the ready word of the next slot.
/// The receiver sends an offer, without waiting for the request: the address of the receive buffer,
/// or none. If the buffer lies in a window, the sender stores there and then fills the ready word;
/// the slot stays empty. So no rank stores into a window before the window's owner is in the same
/// call.
///
/// CPU ranks: if the buffer lies in no window, the receiver may offer to read the message from the
/// sender's memory (rendezvous read). The sender then puts the address into the slot. It waits for
/// the credit, or revokes the read permission if its call fails (ReadPermission). If the Linux
/// kernel cannot read that memory, the sender puts null there, and the message goes through slots.
/// If the last offer was none, the sender does not wait for the next, except if it may be a read of
/// another process. The sender marks the first slot, so that the receiver takes the message from
/// the slots whatever it has offered.
///
/// Ranks on one GPU: a sender whose data lie in a window may leave a part of the message to the
/// receiver. It puts the place and the length into a slot, and marks its ready word. The receiver
/// copies from there. For such a part the sender sends no request, and awaits no offer.
///
/// Packets: a short message between ranks of a team goes in packets, whose flags show that they
/// have arrived (oriel/device/packet.hpp). Packets have a ring of their own beside the slots. Their
/// credit is returned late, for half a ring at a time. While a receiver waits for packets, it owes
/// credit for less than half a ring, or for one of two slots. A GPU returns the rest at the start
/// of the next launch, where it needs no fence.
///
/// A rank has two sets of channels. One set leads to the ranks of its LSA team, whose memory it can
/// write. The other leads to ranks of other teams, which its NIC writes to. For another team the
/// sender fills a slot in its own memory first, in a ring of the same shape.
namespace oriel::kernels {

/// Counters of one pair of channels between this rank and a peer. They count slots since the
/// communicator started. They live in device memory, so that a replayed graph continues where the
/// last call ended.
struct alignas(16) ChannelCounters {
  // Channel to the peer:
  std::uint64_t sent;           ///< slots filled
  std::uint64_t packets_sent;   ///< packet slots filled
  std::uint64_t packet_credit;  ///< packet slots that the peer had emptied at the last poll
  // Channel from the peer:
  std::uint64_t received;  ///< slots emptied
  std::uint64_t packets_received;
  std::uint64_t packets_returned;  ///< packet slots whose credit has been returned
  /// CPU ranks: packets_received when the last packets of the short way were sent.
  std::uint64_t received_before;
};

/// The receiver's offer for one message. It lies in the sender's memory beside the credits of the
/// channel.
struct ChannelOffer {
  std::uint64_t offset;  ///< receive buffer in the receiver's slot, kReads or kNoOffset
  std::uint64_t word;    ///< ready word of the first slot of the message's part
};
/// Offer: the receiver reads the message from the sender's memory.
inline constexpr std::uint64_t kReads = kNoOffset - 1;
inline constexpr std::uint64_t kOfferPlace = 16;        ///< bytes after the credit word
inline constexpr std::uint64_t kPacketCreditPlace = 8;  ///< bytes after the credit word

/// Offsets in bytes from the start of the scratch memory, equal at both ends of each channel. Peers
/// are indices in the LSA team, or world ranks.
///
/// Two ranks are joined by `channels_per_peer` channels in each direction. One group of threads at
/// each end uses each channel. So a message that is cut over several channels moves in parallel.
struct ChannelLayout {
  std::uint64_t counters = 0;  ///< this rank's: [peer][channel] ChannelCounters
  std::uint64_t credits = 0;  ///< at the sender: [receiver][channel], a word in a sector of its own
  std::uint64_t ready = 0;    ///< at the receiver: [sender][channel][slot], a word
  std::uint64_t packets = 0;  ///< at the receiver: [sender][channel][slot], packet_slot_bytes
  std::uint64_t rings = 0;    ///< at the receiver: [sender][channel][slot], slot_bytes
  std::uint64_t staging = 0;  ///< at the sender: [receiver][channel][slot]; 0 inside a team
  std::uint64_t total_bytes = 0;
  std::uint32_t slot_bytes = 0;   ///< a multiple of 128
  std::uint32_t depth = 0;        ///< slots of a ring, a power of two
  std::uint32_t credit_step = 1;  ///< slots per returned credit, between teams
  std::int32_t ranks = 1;
  std::int32_t channels_per_peer = 1;
  /// A message uses one channel per `least_channel_bytes` bytes, up to `channels_per_peer`.
  std::uint32_t least_channel_bytes = 1;
  /// Smallest message for which the sender sends a request.
  std::uint64_t least_direct_bytes = ~std::uint64_t{0};
  std::uint32_t direct_bytes = 0;  ///< most bytes that one step moves of a direct message
  /// Largest message that goes in packets; 0: no packets.
  std::uint64_t most_packet_bytes = 0;
  std::uint32_t packet_channel_bytes = 1;  ///< least_channel_bytes of messages in packets
  std::uint32_t packet_bytes = 0;          ///< data bytes of a packet slot
  std::uint32_t packet_slot_bytes = 0;     ///< memory of a packet slot
  std::uint32_t packet_depth = 1;          ///< slots of a ring of packets, a power of two
};

/// Divides `bytes` of scratch memory from `offset` on among the channels of a team of `ranks`
/// ranks. `ctas` is the largest number of CTAs of one launch. A CPU rank has one channel per
/// peer.
ChannelLayout make_channel_layout(Backend backend, int ranks, int ctas, std::uint64_t offset,
                                  std::uint64_t bytes);
/// Divides likewise among the channels between LSA teams, for `ranks` ranks in all. Among very many
/// ranks the layout takes more than `bytes`.
ChannelLayout make_far_channel_layout(Backend backend, int ranks, std::uint64_t offset,
                                      std::uint64_t bytes);

/// Cut of a message over channels: channel c carries the bytes from c * piece on.
struct ChannelCut {
  std::int32_t channels = 0;
  std::uint64_t piece = 0;
};

/// Cuts a message of `bytes` bytes. Sender and receiver compute the same cut. Pieces are multiples
/// of 128 bytes, except the last.
ORIEL_DEVICE_FN ChannelCut cut_over_channels(const ChannelLayout& layout, std::uint64_t bytes) {
  ChannelCut cut;
  if (bytes == 0) return cut;
  const auto most = static_cast<std::uint64_t>(layout.channels_per_peer);
  const std::uint64_t least =
      bytes <= layout.most_packet_bytes ? layout.packet_channel_bytes : layout.least_channel_bytes;
  if (most == 1 || bytes <= least) {  // avoids divisions, which are slow on GPUs
    cut.piece = device::round_up(bytes, 128U);
    cut.channels = 1;
    return cut;
  }
  std::uint64_t channels = device::divide_up(bytes, least);
  if (channels > most) channels = most;
  cut.piece = device::round_up(device::divide_up(bytes, channels), 128U);
  cut.channels = static_cast<std::int32_t>(device::divide_up(bytes, cut.piece));
  return cut;
}

}  // namespace oriel::kernels
