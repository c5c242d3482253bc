// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/doorbell.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/window.hpp"

#include "kernels/algorithms/far_word.hpp"
#include "kernels/algorithms/packet_slot.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/layout.hpp"

/// The two ends of a channel (plan/channel_layout.hpp).
///
/// Memory order. The sender stores a slot's data, then its ready word with release; the receiver
/// loads the ready word with acquire before it reads the data. The receiver reads the data, then
/// stores the credit with release; the sender loads the credit with acquire before it reuses the
/// slot. In a group of threads, one thread makes these accesses and a sync() orders the accesses of
/// the others. Between teams, the NIC writes the data, then the ready word. There, the credit of a
/// slot also proves that the NIC has read the sender's copy of the slot.
///
/// Packets need no order: each proves by its flag that it has arrived. The receiver loads all
/// packets of a slot, then stores the packet credit with release. Credit for an earlier kernel's
/// packets needs no release on a GPU. The sender loads the packet credit with acquire before it
/// reuses the slot.
///
/// A receiver stores an offer (the place where a message is wanted), then the offer's word with
/// release. The sender loads this word with acquire before it stores at the place. The sender
/// stores its request with release. So a receiver in another call that sees the request knows that
/// no packets are under way.
///
/// A receiver that copies from the sender's memory has loaded the ready word with acquire. It
/// returns the credit with release once it has copied. The sender's launch ends only then, unless a
/// wait is given up. Then the receiver may copy what the user has stored since, before it learns of
/// the failure.
namespace oriel::kernels {

/// Returns the word that marks slot `number` as holding data of the message with this signature.
ORIEL_DEVICE_FN constexpr std::uint64_t ready_word(std::uint64_t number, std::uint32_t signature) {
  return (number + 1) << kSignatureBits | signature;
}
/// Flag in a ready word: the slot is empty, and its sender requests the place of the message.
inline constexpr std::uint64_t kAsks = std::uint64_t{1} << 63;
/// Flag in a ready word of a CPU rank: the message goes in slots, whatever the receiver's offer is.
inline constexpr std::uint64_t kInSlots = std::uint64_t{1} << 62;
/// Flag in a ready word of a rank that shares its GPU with the receiver. The slot has an offset in
/// the sender's slot of the flat space, and how many bytes the receiver copies from there.
inline constexpr std::uint64_t kPulled = kInSlots;

/// Computes addresses of the channels inside a team, by arithmetic alone.
class ChannelPlaces {
 public:
  ORIEL_DEVICE_FN explicit ChannelPlaces(const ExchangeMemory& memory) : memory_(memory) {}

  ORIEL_DEVICE_FN std::byte* at(std::int32_t rank, std::uint64_t offset) const {
    return device::advance_4g(memory_.scratch + offset,
                              memory_.stride_4g * static_cast<std::uint32_t>(rank));
  }
  ORIEL_DEVICE_FN std::byte* here(std::uint64_t offset) const { return at(memory_.rank, offset); }
  /// Returns the address of `offset` in `rank`'s slot of the flat space.
  ORIEL_DEVICE_FN std::byte* flat(std::int32_t rank, std::uint64_t offset) const {
    return device::advance_4g(memory_.flat_base + offset,
                              memory_.stride_4g * static_cast<std::uint32_t>(rank));
  }
  /// Returns the offset of `place` in this rank's slot; kNoOffset outside the slot.
  ORIEL_DEVICE_FN std::uint64_t offset_here(const std::byte* place) const {
    const auto offset =
        static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(place) -
                                   reinterpret_cast<std::uintptr_t>(flat(memory_.rank, 0)));
    return offset < std::uint64_t{memory_.stride_4g} << 32 ? offset : kNoOffset;
  }
  /// Rings the doorbell of `rank` on a CPU, in case the rank sleeps. Does nothing on a GPU.
  ORIEL_DEVICE_FN void wake([[maybe_unused]] std::int32_t rank) const {
#if !ORIEL_DEVICE_CODE
    device::ring(*reinterpret_cast<device::Doorbell*>(at(rank, memory_.doorbell)));
#endif
  }

 private:
  const ExchangeMemory& memory_;
};

/// Offsets of one pair of channels between this rank and a peer. Ranks are indices in the team,
/// or world ranks, as the layout counts them.
class ChannelOffsets {
 public:
  ORIEL_DEVICE_FN ChannelOffsets(const ChannelLayout& layout, std::int32_t own, std::int32_t peer,
                                 std::int32_t channel)
      : layout_(layout),
        own_(index(own, peer, layout.ranks, layout.channels_per_peer, channel)),
        peers_(index(peer, own, layout.ranks, layout.channels_per_peer, channel)) {}

  [[nodiscard]] ORIEL_DEVICE_FN const ChannelLayout& layout() const { return layout_; }
  /// Returns the offset of the ChannelCounters in this rank's memory.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t counters() const {
    return layout_.counters + std::uint64_t{own_} * sizeof(ChannelCounters);
  }
  /// Returns the offset of the credit, the number of slots that the peer has emptied, in this
  /// rank's memory.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t credit() const {
    return layout_.credits + std::uint64_t{own_} * kSectorBytes;
  }
  /// Returns the offset of a word that equals ready_word(number, signature) once slot `number`
  /// holds data from the peer.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t ready(std::uint64_t number) const {
    return ready_of(own_, number);
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t slot(std::uint64_t number) const {
    return layout_.rings + ring_place(own_, number);
  }
  /// Returns the offset at which this rank fills slot `number` for its NIC.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t staged(std::uint64_t number) const {
    return layout_.staging + ring_place(own_, number);
  }
  /// Returns the offset of the peer's ChannelOffer in this rank's memory.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t offer() const { return credit() + kOfferPlace; }
  /// Returns the offset of the credit in the peer's memory, for slots that come from the peer.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t credit_at_peer() const {
    return layout_.credits + std::uint64_t{peers_} * kSectorBytes;
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t offer_at_peer() const {
    return credit_at_peer() + kOfferPlace;
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t ready_at_peer(std::uint64_t number) const {
    return ready_of(peers_, number);
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t slot_at_peer(std::uint64_t number) const {
    return layout_.rings + ring_place(peers_, number);
  }
  /// Returns the offset of the packet credit, the number of packet slots that the peer has emptied,
  /// in this rank's memory.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t packet_credit() const {
    return credit() + kPacketCreditPlace;
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t packet_credit_at_peer() const {
    return credit_at_peer() + kPacketCreditPlace;
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t packet_slot(std::uint64_t number) const {
    return packet_slot_of(own_, number);
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t packet_slot_at_peer(std::uint64_t number) const {
    return packet_slot_of(peers_, number);
  }

 private:
  /// Returns the index of a channel among those of which `owner` keeps state.
  static ORIEL_DEVICE_FN std::uint32_t index(std::int32_t owner, std::int32_t other,
                                             std::int32_t ranks, std::int32_t channels_per_peer,
                                             std::int32_t channel) {
    return slot_of(other, owner, ranks) * static_cast<std::uint32_t>(channels_per_peer) +
           static_cast<std::uint32_t>(channel);
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t ready_of(std::uint32_t channel,
                                                       std::uint64_t number) const {
    return layout_.ready + std::uint64_t{channel} * kSectorBytes +
           (number & (layout_.depth - 1)) * sizeof(std::uint64_t);
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t ring_place(std::uint32_t channel,
                                                         std::uint64_t number) const {
    const std::uint64_t slot =
        std::uint64_t{channel} * layout_.depth + (number & (layout_.depth - 1));
    return slot * layout_.slot_bytes;
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t packet_slot_of(std::uint32_t channel,
                                                             std::uint64_t number) const {
    const std::uint64_t slot =
        std::uint64_t{channel} * layout_.packet_depth + (number & (layout_.packet_depth - 1));
    return layout_.packets + slot * layout_.packet_slot_bytes;
  }

  const ChannelLayout& layout_;
  std::uint32_t own_;
  std::uint32_t peers_;
};

/// One pair of channels between this rank and a peer. kFar: the peer may be in another team.
/// All threads of the group must call, except where a function says one thread.
template <class Group, class M, bool kFar>
class PeerChannel {
 public:
  ORIEL_DEVICE_FN PeerChannel(const ExchangeArguments& arguments, const MessageRun& run,
                              std::int32_t channel)
      : arguments_(arguments),
        places_(arguments),
        peer_(arguments.message[run.message].peer),
        index_(run.team_member - 1),
        offsets_(is_far()
                     ? ChannelOffsets(arguments.far_channels, arguments.world_rank, peer_, channel)
                     : ChannelOffsets(arguments.channels, arguments.rank, index_, channel)) {}

  ORIEL_DEVICE_FN std::int32_t peer() const { return peer_; }
  ORIEL_DEVICE_FN const ChannelLayout& layout() const { return offsets_.layout(); }
  ORIEL_DEVICE_FN ChannelCounters* counters() const {
    return reinterpret_cast<ChannelCounters*>(places_.here(offsets_.counters()));
  }
  /// Loads the credit; ready() loads a ready word. One thread calls.
  ORIEL_DEVICE_FN std::uint64_t credit() const { return load(offsets_.credit()); }
  ORIEL_DEVICE_FN std::uint64_t ready(std::uint64_t number) const {
    return load(offsets_.ready(number));
  }
  /// Returns slot `number` from the peer, in this rank's memory.
  ORIEL_DEVICE_FN const std::byte* arrived(std::uint64_t number) const {
    return places_.here(offsets_.slot(number));
  }
  /// Returns the place at which this rank fills slot `number`.
  ORIEL_DEVICE_FN std::byte* filled(std::uint64_t number) const {
    if (is_far()) return places_.here(offsets_.staged(number));
    return places_.at(index_, offsets_.slot_at_peer(number));
  }
  /// Requests the place of the message that slot `number` begins. Only thread 0 needs to call. The
  /// peer must be in this team.
  ORIEL_DEVICE_FN void ask(std::uint64_t number, std::uint32_t signature) const {
    if (Group::rank() == 0) {
      M::template store<device::Order::release>(word_at_peer(offsets_.ready_at_peer(number)),
                                                kAsks | ready_word(number, signature));
    }
    places_.wake(index_);
  }
  /// Offers the peer the place of the message that slot `number` begins. `offset` is in this rank's
  /// slot of the flat space. kReads: this rank reads the message itself. kNoOffset: the message
  /// goes through slots.
  ORIEL_DEVICE_FN void offer(std::uint64_t number, std::uint32_t signature,
                             std::uint64_t offset) const {
    if (Group::rank() == 0) {
      const std::uint64_t at = offsets_.offer_at_peer();
      M::template store<device::Order::relaxed>(word_at_peer(at + offsetof(ChannelOffer, offset)),
                                                offset);
      M::template store<device::Order::release>(word_at_peer(at + offsetof(ChannelOffer, word)),
                                                ready_word(number, signature));
    }
    places_.wake(index_);
  }
  /// Returns the offset of `place` in this rank's slot of the flat space, where the peer can store.
  /// Returns kNoOffset outside the slot.
  ORIEL_DEVICE_FN std::uint64_t offset_of(const std::byte* place) const {
    return places_.offset_here(place);
  }
  /// Returns the word of the peer's offer. One thread calls. Once the word has arrived, any thread
  /// may call offered_offset(), until the next slot is published.
  ORIEL_DEVICE_FN std::uint64_t offered_word() const {
    return load(offsets_.offer() + offsetof(ChannelOffer, word));
  }
  ORIEL_DEVICE_FN std::uint64_t offered_offset() const {
    return load(offsets_.offer() + offsetof(ChannelOffer, offset));
  }
  /// Returns the address of `offset` in the peer's slot of the flat space.
  ORIEL_DEVICE_FN std::byte* at_peer(std::uint64_t offset) const {
    return places_.flat(index_, offset);
  }
  /// Sends packets to the peer's slot `number`: see PacketSlot::send.
  ORIEL_DEVICE_FN void send_packets(std::uint64_t number, std::uint64_t header,
                                    const std::byte* from, std::uint64_t bytes,
                                    std::uint64_t fill) const {
    std::byte* const slot = places_.at(index_, offsets_.packet_slot_at_peer(number));
    PacketSlot<Group, M>(slot, number).send(header, from, bytes, fill);
    places_.wake(index_);
  }
  /// Returns packet slot `number` from the peer.
  ORIEL_DEVICE_FN PacketSlot<Group, M> packets_from(std::uint64_t number) const {
    return {places_.here(offsets_.packet_slot(number)), number};
  }
  /// Loads the packet credit. One thread calls.
  ORIEL_DEVICE_FN std::uint64_t packet_credit() const { return load(offsets_.packet_credit()); }
  /// Returns packet credit to the peer: all threads of the group have emptied `count` packet slots
  /// in total.
  template <device::Order kOrder>
  ORIEL_DEVICE_FN void return_packet_credit(std::uint64_t count) const {
    Group::sync();
    if (Group::rank() == 0) {
      M::template store<kOrder>(word_at_peer(offsets_.packet_credit_at_peer()), count);
    }
    places_.wake(index_);
  }
  /// Marks slot `number`, which the group has filled with `bytes` bytes, as ready at the peer. The
  /// ready word gets `flags`. Returns false if the queue has failed.
  ORIEL_DEVICE_FN bool publish(std::uint64_t number, std::uint64_t bytes, std::uint32_t signature,
                               std::uint64_t flags = 0) const {
    const std::uint64_t word = flags | ready_word(number, signature);
    const std::uint64_t offset = offsets_.ready_at_peer(number);
    Group::sync();
    if constexpr (kFar) {
      const Ahead ahead{places_.here(offsets_.staged(number)), offsets_.staged(number),
                        offsets_.slot_at_peer(number), bytes};
      if (is_far()) return post(ahead, word, offset);
    }
    store(offset, word);
    return true;
  }
  /// Returns credit to the peer: all threads of the group have emptied `count` slots in total.
  /// Between teams, credit goes out for `credit_step` slots (half a ring) at a time. Returns false
  /// if the queue has failed.
  ORIEL_DEVICE_FN bool return_credit(std::uint64_t count) const {
    Group::sync();
    if constexpr (kFar) {
      const bool is_due = (count & (layout().credit_step - 1)) == 0;
      if (is_far()) return !is_due || post({}, count, offsets_.credit_at_peer());
    }
    store(offsets_.credit_at_peer(), count);
    return true;
  }

 private:
  ORIEL_DEVICE_FN bool is_far() const {
    if constexpr (kFar) return index_ < 0;
    return false;
  }
  ORIEL_DEVICE_FN std::uint64_t load(std::uint64_t offset) const {
    return M::template load<device::Order::acquire>(
        reinterpret_cast<const std::uint64_t*>(places_.here(offset)));
  }
  /// Stores a word at a peer of the team, with release.
  ORIEL_DEVICE_FN void store(std::uint64_t offset, std::uint64_t word) const {
    if (Group::rank() == 0) M::template store<device::Order::release>(word_at_peer(offset), word);
    places_.wake(index_);
  }
  ORIEL_DEVICE_FN std::uint64_t* word_at_peer(std::uint64_t offset) const {
    return reinterpret_cast<std::uint64_t*>(places_.at(index_, offset));
  }
  ORIEL_DEVICE_FN bool post(const Ahead& ahead, std::uint64_t word, std::uint64_t offset) const {
    const FarScratch far{*arguments_.network, *arguments_.network_window, arguments_.wait};
    return post_word<Group, M>(far, peer_, ahead, word, offset);
  }

  const ExchangeArguments& arguments_;
  ChannelPlaces places_;
  std::int32_t peer_;
  std::int32_t index_;  // index of the peer in the team
  ChannelOffsets offsets_;
};

/// Walks through the messages of one launch between this rank and a peer in one direction, step by
/// step, as one channel moves them. kInPackets: all messages go in packets.
template <bool kInPackets>
class MessageCursor {
 public:
  ORIEL_DEVICE_FN MessageCursor(const ExchangeArguments& arguments, const ChannelLayout& layout,
                                std::int32_t run, std::int32_t channel)
      : arguments_(arguments),
        layout_(layout),
        channel_(channel),
        item_(arguments.run[run].message),
        last_(arguments.run[run + 1].message) {
    enter();
  }

  ORIEL_DEVICE_FN bool done() const { return item_ >= last_; }
  ORIEL_DEVICE_FN std::byte* data() const { return message().data + at_; }
  ORIEL_DEVICE_FN std::uint32_t signature() const { return message().signature; }
  ORIEL_DEVICE_FN std::uint64_t message_bytes() const { return message().bytes; }
  /// Returns whether the message goes in packets.
  ORIEL_DEVICE_FN bool in_packets() const {
    return kInPackets || message().bytes <= layout_.most_packet_bytes;
  }
  /// Returns whether the next step is the first of a message whose place its sender requests,
  /// unless the receiver copies all of it.
  ORIEL_DEVICE_FN bool asks() const {
    return !kInPackets && at_ == begin_ && message().bytes >= layout_.least_direct_bytes;
  }
  /// Sets whether this message bypasses the slots. Call it before the first step of the message.
  ORIEL_DEVICE_FN void set_direct(bool direct) { direct_ = direct; }
  ORIEL_DEVICE_FN bool is_direct() const { return direct_; }
  /// Returns the bytes of the channel's part that earlier steps have moved.
  ORIEL_DEVICE_FN std::uint64_t moved() const { return at_ - begin_; }
  /// Returns the bytes that the next step moves.
  ORIEL_DEVICE_FN std::uint64_t bytes() const {
    std::uint64_t most = layout_.slot_bytes;
    if (direct_) most = layout_.direct_bytes;
    if (in_packets()) most = layout_.packet_bytes;
    return left() < most ? left() : most;
  }
  ORIEL_DEVICE_FN bool is_last_step() const { return at_ + bytes() >= end_; }
  /// Returns the bytes of the channel's part that no step has moved.
  ORIEL_DEVICE_FN std::uint64_t left() const { return end_ - at_; }
  ORIEL_DEVICE_FN void advance() { advance_by(bytes()); }
  /// Ends a step that has moved `bytes` bytes instead of bytes().
  ORIEL_DEVICE_FN void advance_by(std::uint64_t bytes) {
    at_ += bytes;
    if (at_ < end_) return;
    ++item_;
    enter();
  }

 private:
  ORIEL_DEVICE_FN const Message& message() const { return arguments_.message[item_]; }
  /// Moves to this channel's part of the next message that has one.
  ORIEL_DEVICE_FN void enter() {
    direct_ = false;
    for (; item_ < last_; ++item_) {
      const ChannelCut cut = cut_over_channels(layout_, message().bytes);
      if (channel_ >= cut.channels) continue;
      begin_ = at_ = static_cast<std::uint64_t>(channel_) * cut.piece;
      end_ = at_ + cut.piece < message().bytes ? at_ + cut.piece : message().bytes;
      return;
    }
  }

  const ExchangeArguments& arguments_;
  const ChannelLayout& layout_;
  std::int32_t channel_;
  std::int32_t item_;
  std::int32_t last_;
  std::uint64_t begin_ = 0;  // offset of the channel's part in the message
  std::uint64_t at_ = 0;
  std::uint64_t end_ = 0;
  bool direct_ = false;
};

}  // namespace oriel::kernels
