// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/wait.hpp"

#include "kernels/algorithms/channel_ends.hpp"
#include "kernels/plan/exchange.hpp"

/// The streams of an exchange. A stream moves one lane's part of all messages to, or from, one
/// peer. Each step moves what one slot holds, or stores so much of a message where it is wanted,
/// and can do so once is_ready() is true. A GPU gives each stream a group of threads, which waits
/// for it; a CPU thread goes through all its streams and waits only when none can move. So no
/// stream waits for another of the same rank.
///
/// A Mover copies bytes: send() to a slot, place() to where the user wants them. One with kReads
/// may read a peer's memory: can_read() says whether, read() does so, and note() is told how long
/// the messages for which is_timed() took from their first step on.
///
/// A step returns false if the peer's message is not the one that this rank's call expects, or the
/// queue to it has failed. M: the memory policy.
namespace oriel::kernels {

/// Tells the host what is wrong with `rank`.
ORIEL_DEVICE_FN void report_failure(const ExchangeArguments& arguments, FailureKind kind,
                                    std::int32_t rank) {
  if (arguments.failure == nullptr) return;
  // One 8-byte store, so that kind and rank are read together.
  device::Memory::store<device::Order::release>(
      reinterpret_cast<std::uint64_t*>(arguments.failure),
      static_cast<std::uint64_t>(kind) |
          static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32);
}
/// Tells the host that `rank` is in another call.
ORIEL_DEVICE_FN void report_other_message(const ExchangeArguments& arguments, std::int32_t rank) {
  report_failure(arguments, FailureKind::world_signature, rank);
}

template <class Group, class Mover, class M, ExchangeForm kForm>
class SendStream {
 public:
  ORIEL_DEVICE_FN SendStream(const ExchangeArguments& arguments, Mover& mover, std::int32_t run,
                             std::int32_t lane)
      : arguments_(arguments),
        mover_(mover),
        lane_(arguments, arguments.run[run], lane),
        cursor_(arguments, lane_.layout(), run, lane),
        index_(arguments.run[run].team_member - 1) {
    if (cursor_.done()) return;
    const ChannelCounters* const counters = lane_.counters();
    sent_ = device::Memory::load<device::Order::weak>(&counters->sent);
    packets_sent_ = device::Memory::load<device::Order::weak>(&counters->packets_sent);
    packet_credit_ = device::Memory::load<device::Order::weak>(&counters->packet_credit);
    credit_ = sent_;  // looked up when a slot is needed: the last call may have left some full
    credit_ -= lane_.layout().depth;
  }

  ORIEL_DEVICE_FN bool done() const { return cursor_.done() && !(Mover::kReads && is_lent_); }
  ORIEL_DEVICE_FN std::int32_t peer() const { return lane_.peer(); }
  /// Any one thread of the group.
  ORIEL_DEVICE_FN bool is_ready() {
    if constexpr (Mover::kReads) {
      if (cursor_.done()) {
        credit_ = lane_.credit();
        return credit_ == sent_;
      }
    }
    if (cursor_.in_packets()) {
      if (!has_packet_slot()) packet_credit_ = lane_.packet_credit();
      return has_packet_slot();
    }
    if (!has_slot()) {
      credit_ = lane_.credit();
      if (!has_slot()) return false;
    }
    return !cursor_.asks() || (Mover::kReads && goes_in_slots_) || has_offer();
  }
  ORIEL_DEVICE_FN bool step() {
    if constexpr (Mover::kReads) {
      if (cursor_.done()) {
        is_lent_ = false;
        return true;
      }
    }
    if (cursor_.in_packets()) {
      send_packets();
      return true;
    }
    const bool has_way = Mover::kReads && goes_in_slots_;
    if (cursor_.asks() && !has_way && !take_offer()) return false;
    const std::uint64_t bytes = cursor_.bytes();
    if (!cursor_.is_direct()) {
      mover_.send(lane_.filled(sent_), cursor_.data(), bytes);
    } else if (!lend()) {
      mover_.place(target_ + cursor_.moved(), cursor_.data(), bytes);
    }
    if (!lane_.publish(sent_, bytes, cursor_.signature())) return false;
    ++sent_;
    if constexpr (Mover::kReads) {
      // A message of which nothing has moved begins again, in slots.
      const bool begins_again = goes_in_slots_ && !has_way;
      if (begins_again) return true;
      goes_in_slots_ = false;
    }
    cursor_.advance();
    return true;
  }
  /// CPU ranks: whether the receiver may still read a message.
  bool is_lent() const { return is_lent_; }
  ORIEL_DEVICE_FN void finish() {
    if (Group::rank() != 0) return;
    ChannelCounters* const counters = lane_.counters();
    device::Memory::store<device::Order::weak>(&counters->sent, sent_);
    device::Memory::store<device::Order::weak>(&counters->packets_sent, packets_sent_);
    device::Memory::store<device::Order::weak>(&counters->packet_credit, packet_credit_);
  }

 private:
  ORIEL_DEVICE_FN bool has_slot() const {
    return static_cast<std::int64_t>(sent_ - credit_) <
           static_cast<std::int64_t>(lane_.layout().depth);
  }
  ORIEL_DEVICE_FN bool has_packet_slot() const {
    return packets_sent_ - packet_credit_ < lane_.layout().packet_depth;
  }
  /// Where the receiver reads this message itself: tells it where the data of this step lie.
  ORIEL_DEVICE_FN bool lend() {
    if constexpr (Mover::kReads) {
      if (!is_read_) return false;
      const bool can_lend = cursor_.moved() > 0 || mover_.can_lend(index_, cursor_.data());
      device::Memory::store<device::Order::relaxed>(
          reinterpret_cast<std::uint64_t*>(lane_.filled(sent_)),
          can_lend ? reinterpret_cast<std::uintptr_t>(cursor_.data()) : 0);
      is_lent_ = is_lent_ || can_lend;
      goes_in_slots_ = !can_lend;
      if (goes_in_slots_) cursor_.set_direct(false);
      return true;
    }
    return false;
  }
  ORIEL_DEVICE_FN void send_packets() {
    const bool sweeps = packets_sent_ % kPacketSweep < lane_.layout().packet_depth;
    const std::uint64_t fill = sweeps ? lane_.layout().packet_bytes / sizeof(std::uint64_t) : 0;
    // As a ready word, of the slot that comes next: it tells the place among the messages, too.
    lane_.send_packets(packets_sent_, ready_word(sent_, cursor_.signature()), cursor_.data(),
                       cursor_.bytes(), fill);
    ++packets_sent_;
    cursor_.advance();
    if (!done() && cursor_.asks()) Group::sync();  // who sees the question has all packets
  }
  /// Only the thread that calls this has asked, and has the offer.
  ORIEL_DEVICE_FN bool has_offer() {
    if (!has_asked_) lane_.ask(sent_, cursor_.signature());
    has_asked_ = true;
    offer_ = lane_.offered_word();
    return offer_ >> kSignatureBits == sent_ + 1;
  }
  ORIEL_DEVICE_FN bool take_offer() {
    has_asked_ = false;
    const bool differs = Group::rank() == 0 && offer_ != ready_word(sent_, cursor_.signature());
    if (differs) report_other_message(arguments_, peer());
    if (Group::any(differs)) return false;
    const std::uint64_t offset =
        Group::broadcast(Group::rank() == 0 ? lane_.offered_offset() : kNoOffset);
    cursor_.set_direct(offset != kNoOffset);
    is_read_ = offset == kReads;
    if (cursor_.is_direct()) target_ = lane_.at_peer(offset);
    return true;
  }

  const ExchangeArguments& arguments_;
  Mover& mover_;
  ChannelLane<Group, M, kForm == ExchangeForm::any> lane_;
  LaneCursor<kForm == ExchangeForm::packets> cursor_;
  std::uint64_t sent_ = 0;
  std::uint64_t credit_ = 0;
  std::uint64_t packets_sent_ = 0;
  std::uint64_t packet_credit_ = 0;  // as last seen: nearly always there is one
  std::uint64_t offer_ = 0;
  std::byte* target_ = nullptr;  // where the message that is sent past the slots begins
  bool has_asked_ = false;
  // CPU ranks:
  std::int32_t index_;          // of the peer in the team
  bool is_read_ = false;        // the receiver reads this message itself
  bool is_lent_ = false;        // it may still read this one, or one before
  bool goes_in_slots_ = false;  // it was to be read, but cannot be
};

template <class Group, class Mover, class M, ExchangeForm kForm>
class ReceiveStream {
 public:
  ORIEL_DEVICE_FN ReceiveStream(const ExchangeArguments& arguments, Mover& mover, std::int32_t run,
                                std::int32_t lane)
      : arguments_(arguments),
        mover_(mover),
        lane_(arguments, arguments.run[run], lane),
        cursor_(arguments, lane_.layout(), run, lane),
        index_(arguments.run[run].team_member - 1) {
    if (cursor_.done()) return;
    const ChannelCounters* const counters = lane_.counters();
    received_ = device::Memory::load<device::Order::weak>(&counters->received);
    packets_received_ = device::Memory::load<device::Order::weak>(&counters->packets_received);
    packets_given_ = device::Memory::load<device::Order::weak>(&counters->packets_given);
    // The kernel before this one has ended, and its loads with it.
    constexpr auto kOrder = ORIEL_DEVICE_CODE ? device::Order::relaxed : device::Order::release;
    if (cursor_.in_packets() && packets_received_ != packets_given_) give_packets_back<kOrder>();
    offer_place();
  }

  ORIEL_DEVICE_FN bool done() const { return cursor_.done(); }
  ORIEL_DEVICE_FN std::int32_t peer() const { return lane_.peer(); }
  ORIEL_DEVICE_FN bool is_ready() {
    if (cursor_.in_packets()) return has_packets() || is_filled();
    if (has_packets_instead_) return true;
    word_ = lane_.ready(received_);
    // Who asks for the place of another message is not going to fill the slot.
    if (is_next(word_ & ~kAsks)) return !is_question() || differs();
    if (++polls_ % kPollsPerLook == 0) has_packets_instead_ = look_for_packets();
    return has_packets_instead_;
  }
  ORIEL_DEVICE_FN bool step() {
    if (cursor_.in_packets()) return receive_packets();
    // Only the thread that has called is_ready() has the word.
    const bool is_other = Group::rank() == 0 && (has_packets_instead_ || differs());
    if (is_other) report_other_message(arguments_, peer());
    if (Group::any(is_other)) return false;
    if constexpr (Mover::kReads) {
      begin_timed();
      if (reads_ && cursor_.is_direct()) {
        if (lent() == nullptr) return begin_again();
        if (!read()) return false;
      }
    }
    if (!cursor_.is_direct()) {
      mover_.place(cursor_.data(), lane_.arrived(received_), cursor_.bytes());
    }
    if (!lane_.give_back(++received_)) return false;
    if constexpr (Mover::kReads) end_timed();
    cursor_.advance();
    if (!done()) prepare();
    return true;
  }
  ORIEL_DEVICE_FN void finish() {
    if (Group::rank() != 0) return;
    ChannelCounters* const counters = lane_.counters();
    device::Memory::store<device::Order::weak>(&counters->received, received_);
    device::Memory::store<device::Order::weak>(&counters->packets_received, packets_received_);
    device::Memory::store<device::Order::weak>(&counters->packets_given, packets_given_);
  }

 private:
  /// Packet slots for which credit is given at once, but for what a launch begins with.
  static constexpr std::uint64_t kPacketsOwed = 2;
  /// Polls of a slot for each look whether the sender has sent packets instead.
  static constexpr std::uint32_t kPollsPerLook = 64;
  /// Within this time every rank hears of the death of another one.
  static constexpr std::uint64_t kPatienceNs = 1'500'000'000;

  /// Whether `word` is a ready word of the next slot.
  ORIEL_DEVICE_FN bool is_next(std::uint64_t word) const {
    return word >> kSignatureBits == received_ + 1;
  }
  /// Whether the sender has filled the next slot, or asks for its message.
  ORIEL_DEVICE_FN bool is_filled() const { return is_next(lane_.ready(received_) & ~kAsks); }
  /// What the header of the next packets must be: the next slot, and the call.
  ORIEL_DEVICE_FN std::uint64_t header() const {
    return ready_word(received_, cursor_.signature());
  }
  /// Whether a step has something to do. On a GPU it waits by itself, each thread of the group for
  /// the packets that it needs.
  ORIEL_DEVICE_FN bool has_packets() const {
    if (ORIEL_DEVICE_CODE) return true;
    const PacketSlot<Group, M> slot = lane_.packets_from(packets_received_);
    return slot.has_arrived(cursor_.bytes()) || slot.has_other_header(header());
  }
  /// Whether the sender has sent packets where this rank expects the next slot.
  ORIEL_DEVICE_FN bool look_for_packets() const {
    if (lane_.layout().packet_bytes == 0) return false;
    std::uint64_t header = 0;
    return lane_.packets_from(packets_received_).has_header(header) && is_next(header);
  }
  ORIEL_DEVICE_FN bool receive_packets() {
    const PacketSlot<Group, M> slot = lane_.packets_from(packets_received_);
    // Packets that were sent before a slot, or a question, are there once that is.
    const auto await = [&](const auto& arrived) {
      bool is_slot = false;
      const auto ready = [&] {
        if (arrived()) return true;
        is_slot = is_filled();
        return is_slot;
      };
      const auto outcome = device::wait_until<M>(ready, arguments_.wait, {peer(), 0});
      return outcome == device::WaitOutcome::ready && (!is_slot || arrived());
    };
    const bool good = slot.receive(header(), cursor_.data(), cursor_.bytes(), await);
    const bool is_other =
        Group::rank() == 0 && !good && (slot.has_other_header(header()) || is_filled());
    if (is_other) report_other_message(arguments_, peer());
    if (Group::any(!good)) return false;
    ++packets_received_;
    cursor_.advance();
    if (!done()) prepare();
    return true;
  }
  /// Tells the sender what it may need for the message that comes next.
  ORIEL_DEVICE_FN void prepare() {
    offer_place();
    if (!cursor_.in_packets()) return;
    if (packets_received_ - packets_given_ >= kPacketsOwed) {
      give_packets_back<device::Order::release>();
    }
  }
  template <device::Order kOrder>
  ORIEL_DEVICE_FN void give_packets_back() {
    lane_.template give_packets_back<kOrder>(packets_received_);
    packets_given_ = packets_received_;
  }
  ORIEL_DEVICE_FN bool is_question() const { return (word_ & kAsks) != 0; }
  ORIEL_DEVICE_FN bool differs() const {
    return (word_ & ((1u << kSignatureBits) - 1)) != cursor_.signature();
  }
  /// Answers before the sender asks, which it does of itself.
  ORIEL_DEVICE_FN void offer_place() {
    if (!cursor_.asks()) return;
    std::uint64_t offset = lane_.offset_of(cursor_.data());
    if constexpr (Mover::kReads) {
      reads_ = offset == kNoOffset && mover_.can_read(index_, cursor_.message_bytes());
      if (reads_) offset = kernels::kReads;
    }
    cursor_.set_direct(offset != kNoOffset);
    lane_.offer(received_, cursor_.signature(), offset);
  }
  void begin_timed() {
    if (cursor_.asks() && mover_.is_timed(index_, cursor_.message_bytes())) {
      begun_ns_ = mover_.now_ns();
    }
  }
  void end_timed() {
    if (begun_ns_ == 0 || !cursor_.is_last_step()) return;
    // A message that goes straight into a window goes neither way.
    if (reads_ || !cursor_.is_direct()) {
      mover_.note(index_, reads_, begun_ns_, cursor_.message_bytes());
    }
    begun_ns_ = 0;
  }
  /// The address of what the sender has lent for this step; null if it cannot.
  const std::byte* lent() const {
    return reinterpret_cast<const std::byte*>(device::Memory::load<device::Order::relaxed>(
        reinterpret_cast<const std::uint64_t*>(lane_.arrived(received_))));
  }
  /// The message comes through slots, from its first byte on.
  bool begin_again() {
    reads_ = false;
    begun_ns_ = 0;
    cursor_.set_direct(false);
    return lane_.give_back(++received_);
  }
  /// Copies what the sender has lent for this step.
  bool read() {
    if (mover_.read(index_, cursor_.data(), lent(), cursor_.bytes())) return true;
    // A sender that has died, or whose call has failed, is for others to name, who end this wait.
    device::WaitControl patience = arguments_.wait;
    patience.timeout_ns = kPatienceNs;
    patience.stall = nullptr;
    const auto never = [] { return false; };
    const auto outcome = device::wait_until<M>(never, patience, {peer(), 0});
    if (outcome == device::WaitOutcome::timed_out) {
      report_failure(arguments_, FailureKind::unreadable, peer());
    }
    return false;
  }

  const ExchangeArguments& arguments_;
  Mover& mover_;
  ChannelLane<Group, M, kForm == ExchangeForm::any> lane_;
  LaneCursor<kForm == ExchangeForm::packets> cursor_;
  std::uint64_t received_ = 0;
  std::uint64_t word_ = 0;
  std::uint64_t packets_received_ = 0;
  std::uint64_t packets_given_ = 0;  // credit for so many
  std::uint32_t polls_ = 0;
  bool has_packets_instead_ = false;
  // CPU ranks:
  std::int32_t index_;          // of the peer in the team
  bool reads_ = false;          // this message is read where its sender has it
  std::uint64_t begun_ns_ = 0;  // when the first step of a message that is timed began
};

/// Runs one stream with a group of threads to its end. Where it has to wait, `other` does a piece
/// of other work and returns true, or false if there is none left. False, for all threads of the
/// group, if a wait was given up or a peer is in another call.
template <class Group, class Stream, class Other>
ORIEL_DEVICE_FN bool run_stream(const device::WaitControl& wait, Stream stream,
                                const Other& other) {
  if (stream.done()) return true;
  while (!stream.done()) {
    while (!Group::any(Group::rank() == 0 && stream.is_ready())) {
      if (other()) continue;
      bool alive = true;
      while (alive && Group::rank() == 0 && !stream.is_ready()) {
        const auto ready = [&] { return stream.is_ready(); };
        alive = device::wait_until(ready, wait, {stream.peer(), 0}) == device::WaitOutcome::ready;
      }
      if (Group::any(!alive)) return false;
      break;
    }
    if (!stream.step()) return false;
  }
  stream.finish();
  return true;
}

}  // namespace oriel::kernels
