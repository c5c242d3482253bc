// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"

#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/arguments.hpp"

/// Where the channels of a communicator lie in its scratch memory. A channel is a ring of slots
/// from one rank to another. The sender fills slots at the receiver; the receiver returns credits
/// for the slots that it has emptied. So neither rank overwrites data that the other still needs,
/// and a sender waits for nobody but its receiver.
///
/// A message of `least_direct_bytes` or more between ranks of a team goes past the slots where it
/// can. Its sender asks for it in the ready word of the next slot, and the receiver offers the
/// place where the message is wanted, or none. If that place lies in a window, the sender stores
/// there, and only then fills the ready word; the slot stays empty. So no rank stores into a
/// window before its owner is in the same call.
///
/// CPU ranks: if the place lies in no window, the receiver may offer to read the message where its
/// sender has it. The sender then puts the address into the slot, and waits for the credit, or
/// takes back what it has lent (Lending). It puts null where the kernel cannot read its memory: the
/// message then goes through slots.
///
/// A short message between ranks of a team goes in packets, which show by themselves that they have
/// arrived (oriel/device/packet.hpp). They have a ring of their own beside the slots. Credit for it
/// is given late: for the packets of a launch when the next one begins, where it costs no fence.
/// While a receiver waits for packets it owes credit for one slot at most.
///
/// A rank has two sets of channels: to the ranks of its LSA team, whose memory it can write, and to
/// those of other teams, which its NIC writes to. A sender fills a slot of another team's rank in
/// its own memory first, in a ring of the same shape.
namespace oriel::kernels {

/// Counters of one channel at one of its ends. They count slots since the communicator started.
/// They live in device memory, so that a replayed graph continues where the last call ended.
struct alignas(16) ChannelCounters {
  // Of the channel to the peer:
  std::uint64_t sent;           ///< slots filled
  std::uint64_t packets_sent;   ///< packet slots filled
  std::uint64_t packet_credit;  ///< how many of these the peer had emptied when last looked up
  // Of the channel from the peer:
  std::uint64_t received;  ///< slots emptied
  std::uint64_t packets_received;
  std::uint64_t packets_given;  ///< how many of these credit has been given for
};

/// What the sender of a message finds beside the credits of its channel.
struct ChannelOffer {
  std::uint64_t
      offset;  ///< of the message's part of this lane in the receiver's slot, kReads, or kNoOffset
  std::uint64_t word;  ///< as a ready word, of the slot that the part begins with
};
/// The receiver reads the message itself.
inline constexpr std::uint64_t kReads = kNoOffset - 1;
inline constexpr std::uint64_t kOfferPlace = 16;        ///< bytes behind the credit
inline constexpr std::uint64_t kPacketCreditPlace = 8;  ///< likewise

/// Offsets in bytes from the start of the scratch memory; the same at both ends of each channel.
/// Peers are indices in the LSA team, or world ranks.
///
/// Two ranks are joined by `lanes` channels in each direction. Each lane is used by one group of
/// threads at each end, so a message that is cut over several lanes moves in parallel.
struct ChannelLayout {
  std::uint64_t counters = 0;  ///< of this rank: [peer][lane] ChannelCounters
  std::uint64_t credits = 0;   ///< at the sender: [receiver][lane], a word in a sector of its own
  std::uint64_t ready = 0;     ///< at the receiver: [sender][lane][slot], a word
  std::uint64_t packets = 0;   ///< at the receiver: [sender][lane][slot], packet_slot_bytes
  std::uint64_t rings = 0;     ///< at the receiver: [sender][lane][slot], slot_bytes
  std::uint64_t staging = 0;   ///< at the sender: [receiver][lane][slot]; 0 inside a team
  std::uint64_t total_bytes = 0;
  std::uint32_t slot_bytes = 0;   ///< a multiple of 128
  std::uint32_t depth = 0;        ///< slots of a ring, a power of two
  std::uint32_t credit_step = 1;  ///< slots for which credit is given at once, between teams
  std::int32_t ranks = 1;
  std::int32_t lanes = 1;
  /// A message uses one lane for each so many bytes, up to `lanes`.
  std::uint32_t least_lane_bytes = 1;
  /// A message of at least so many bytes is asked for.
  std::uint64_t least_direct_bytes = ~std::uint64_t{0};
  std::uint32_t direct_bytes = 0;  ///< most that one step stores at the receiver
  /// A message of at most so many bytes goes in packets.
  std::uint64_t most_packet_bytes = 0;
  std::uint32_t packet_lane_bytes = 1;  ///< as least_lane_bytes, for messages in packets
  std::uint32_t packet_bytes = 0;       ///< data of a packet slot
  std::uint32_t packet_slot_bytes = 0;  ///< its memory
  std::uint32_t packet_depth = 1;       ///< slots of a ring of packets, a power of two
};

/// Divides `bytes` of scratch memory from `offset` on among the channels of a team of `ranks`
/// ranks. `ctas` is the most CTAs of one launch; a CPU rank has one lane.
ChannelLayout make_channel_layout(Backend backend, int ranks, int ctas, std::uint64_t offset,
                                  std::uint64_t bytes);
/// Does the same for the channels between LSA teams, of `ranks` ranks in all.
ChannelLayout make_far_channel_layout(Backend backend, int ranks, std::uint64_t offset,
                                      std::uint64_t bytes);

/// How a message is cut over lanes: lane l carries the bytes from l * piece on.
struct LaneCut {
  std::int32_t lanes = 0;
  std::uint64_t piece = 0;
};

/// Cuts a message of `bytes` bytes. Sender and receiver compute the same. Pieces are multiples of
/// 128 bytes but for the last.
ORIEL_DEVICE_FN LaneCut cut_over_lanes(const ChannelLayout& layout, std::uint64_t bytes) {
  LaneCut cut;
  if (bytes == 0) return cut;
  const auto most = static_cast<std::uint64_t>(layout.lanes);
  const std::uint64_t least =
      bytes <= layout.most_packet_bytes ? layout.packet_lane_bytes : layout.least_lane_bytes;
  if (most == 1 || bytes <= least) {  // without divisions, which are slow on GPUs
    cut.piece = (bytes + 127) / 128 * 128;
    cut.lanes = 1;
    return cut;
  }
  std::uint64_t lanes = (bytes + least - 1) / least;
  if (lanes > most) lanes = most;
  cut.piece = ((bytes + lanes - 1) / lanes + 127) / 128 * 128;
  cut.lanes = static_cast<std::int32_t>((bytes + cut.piece - 1) / cut.piece);
  return cut;
}

}  // namespace oriel::kernels
