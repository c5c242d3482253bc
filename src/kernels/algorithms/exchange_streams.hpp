// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/wait.hpp"

#include "kernels/algorithms/channel_ends.hpp"
#include "kernels/algorithms/report_failure.hpp"
#include "kernels/plan/exchange.hpp"

/// Streams of an exchange. A stream moves one channel's part of all messages to, or from, one peer.
/// Each step moves what one slot holds, or stores a part of a message at its final place. A step
/// can run once is_ready() is true.
///
/// A GPU gives each stream a group of threads, which waits for the stream. A CPU thread goes
/// through all its streams and waits only when none can move. So no stream waits for another of the
/// same rank.
///
/// DataOps copy bytes: send() to a slot, place() to the user's buffer. DataOps with kReads
/// may read a peer's memory by read(), if can_read() is true. Its note() receives the time of each
/// message for which is_timed() is true, from the first step on.
///
/// Ranks on one GPU (ExchangeForm::one_gpu): a sender pushes one part of a long message, and lets
/// the receiver copy another part from its window. So both groups move data, where the receiver's
/// would wait. A root lets its receivers copy everything, and copies its own block meanwhile.
///
/// A step returns false if the peer's message is not the one that this rank's call expects. It does
/// so too if the queue to the peer has failed. M: the memory policy.
namespace oriel::kernels {

template <class Group, class DataOps, class M, ExchangeForm kForm>
class SendStream {
  /// Receivers may copy from this rank's memory.
  static constexpr bool kIsPulled = kForm == ExchangeForm::one_gpu;
  static constexpr bool kExposes = DataOps::kReads || kIsPulled;

 public:
  ORIEL_DEVICE_FN SendStream(const ExchangeArguments& arguments, DataOps& ops, std::int32_t run,
                             std::int32_t channel)
      : arguments_(arguments),
        ops_(ops),
        channel_(arguments, arguments.run[run], channel),
        cursor_(arguments, channel_.layout(), run, channel),
        index_(arguments.run[run].team_member - 1) {
    if (cursor_.done()) return;
    const ChannelCounters* const counters = channel_.counters();
    sent_ = device::Memory::load<device::Order::weak>(&counters->sent);
    packets_sent_ = device::Memory::load<device::Order::weak>(&counters->packets_sent);
    packet_credit_ = device::Memory::load<device::Order::weak>(&counters->packet_credit);
    credit_ = sent_;  // loaded when a slot is needed: the last call may have left some full
    credit_ -= channel_.layout().depth;
  }

  ORIEL_DEVICE_FN bool done() const { return cursor_.done() && !(kExposes && is_exposed()); }
  ORIEL_DEVICE_FN std::int32_t peer() const { return channel_.peer(); }
  /// Returns whether step() can run. Thread 0 of the group calls.
  ORIEL_DEVICE_FN bool is_ready() {
    if constexpr (kExposes) {
      if (cursor_.done()) {
        credit_ = channel_.credit();
        return credit_ == sent_;
      }
    }
    if (cursor_.in_packets()) {
      if (!has_packet_slot()) packet_credit_ = channel_.packet_credit();
      return has_packet_slot();
    }
    if (!has_slot()) {
      credit_ = channel_.credit();
      if (!has_slot()) return false;
    }
    return !cursor_.asks() || needs_no_offer() || has_offer();
  }
  ORIEL_DEVICE_FN bool step() {
    if constexpr (kExposes) {
      if (cursor_.done()) {
        is_exposed_ = false;
        return true;
      }
    }
    if (cursor_.in_packets()) {
      send_packets();
      return true;
    }
    const bool has_way = needs_no_offer();
    if (cursor_.asks() && !has_way && !take_offer()) return false;
    if constexpr (kIsPulled) {
      if (cursor_.asks() && let_receiver_copy()) return true;
    }
    const std::uint64_t bytes = cursor_.bytes();
    const bool in_slot = !cursor_.is_direct();
    if (in_slot) {
      ops_.send(channel_.filled(sent_), cursor_.data(), bytes);
    } else if (!expose()) {
      ops_.place(target_ + cursor_.moved(), cursor_.data(), bytes);
    }
    const std::uint64_t flags = DataOps::kReads && in_slot && cursor_.asks() ? kInSlots : 0;
    if (!channel_.publish(sent_, bytes, cursor_.signature(), flags)) return false;
    ++sent_;
    if constexpr (DataOps::kReads) {
      // Restarts the message in slots if the receiver cannot read it; nothing of it has moved.
      const bool begins_again = goes_in_slots_ && !has_way;
      if (begins_again) return true;
      goes_in_slots_ = false;
    }
    cursor_.advance();
    return true;
  }
  /// Returns whether the receiver may still read a message from this rank's memory.
  ORIEL_DEVICE_FN bool is_exposed() const { return is_exposed_; }
  ORIEL_DEVICE_FN void finish() {
    if (Group::rank() != 0) return;
    ChannelCounters* const counters = channel_.counters();
    device::Memory::store<device::Order::weak>(&counters->sent, sent_);
    device::Memory::store<device::Order::weak>(&counters->packets_sent, packets_sent_);
    device::Memory::store<device::Order::weak>(&counters->packet_credit, packet_credit_);
  }

 private:
  ORIEL_DEVICE_FN bool has_slot() const {
    return static_cast<std::int64_t>(sent_ - credit_) <
           static_cast<std::int64_t>(channel_.layout().depth);
  }
  ORIEL_DEVICE_FN bool has_packet_slot() const {
    return packets_sent_ - packet_credit_ < channel_.layout().packet_depth;
  }
  /// Puts the address of this step's data into the slot if the receiver reads the message itself
  /// (rendezvous read). If the operating system cannot read the memory, puts null, and the message
  /// goes through slots. Returns false if the receiver does not read the message itself.
  ORIEL_DEVICE_FN bool expose() {
    if constexpr (DataOps::kReads) {
      if (!is_read_) return false;
      const bool can_expose = cursor_.moved() > 0 || ops_.can_expose(index_, cursor_.data());
      device::Memory::store<device::Order::relaxed>(
          reinterpret_cast<std::uint64_t*>(channel_.filled(sent_)),
          can_expose ? reinterpret_cast<std::uintptr_t>(cursor_.data()) : 0);
      is_exposed_ = is_exposed_ || can_expose;
      goes_in_slots_ = !can_expose;
      if (goes_in_slots_) cursor_.set_direct(false);
      return true;
    }
    return false;
  }
  /// Returns whether the next message begins without an offer.
  ORIEL_DEVICE_FN bool needs_no_offer() const {
    if constexpr (kIsPulled) {
      return arguments_.pulled_parts == kPulledParts &&
             channel_.offset_of(cursor_.data()) != kNoOffset;
    }
    return DataOps::kReads && goes_in_slots_;
  }
  /// Lets the receiver copy its part of the next message. Returns false if it has none, or if the
  /// message is in no window.
  ORIEL_DEVICE_FN bool let_receiver_copy() {
    const std::uint64_t offset = channel_.offset_of(cursor_.data());
    if (arguments_.pulled_parts == 0 || offset == kNoOffset) return false;
    std::uint64_t bytes = cursor_.left();
    const std::uint64_t lines = bytes / (128 * kPulledParts);  // 0: too short to be divided
    if (arguments_.pulled_parts < kPulledParts && lines > 0) {
      bytes = lines * static_cast<std::uint64_t>(arguments_.pulled_parts) * 128;
    }
    if (Group::rank() == 0) {
      auto* const slot = reinterpret_cast<std::uint64_t*>(channel_.filled(sent_));
      device::Memory::store<device::Order::relaxed>(slot, offset);
      device::Memory::store<device::Order::relaxed>(slot + 1, bytes);
    }
    channel_.publish(sent_, bytes, cursor_.signature(), kPulled);
    ++sent_;
    is_exposed_ = true;
    cursor_.advance_by(bytes);
    return true;
  }
  ORIEL_DEVICE_FN void send_packets() {
    const bool sweeps = packets_sent_ % kPacketSweep < channel_.layout().packet_depth;
    const std::uint64_t fill = sweeps ? channel_.layout().packet_bytes / sizeof(std::uint64_t) : 0;
    // Sends the ready word of the next slot as header: it also shows the place among the messages.
    channel_.send_packets(packets_sent_, ready_word(sent_, cursor_.signature()), cursor_.data(),
                          cursor_.bytes(), fill);
    ++packets_sent_;
    cursor_.advance();
    if (!cursor_.done() && cursor_.asks()) Group::sync();  // the request comes after all packets
  }
  /// Sends the request once, then polls for the offer. Only the calling thread keeps this state.
  ///
  /// A CPU rank does not wait if the peer's last offer was none, because the next is mostly none as
  /// well. The wait takes longer than a second copy of a short message. Waits for offers that may
  /// be reads, which a receiver tries now and then.
  ORIEL_DEVICE_FN bool has_offer() {
    if constexpr (DataOps::kReads) {
      goes_in_slots_ = !has_asked_ && !ops_.is_timed(index_, cursor_.message_bytes()) &&
                       !has_offer_word() && channel_.offered_offset() == kNoOffset;
      if (goes_in_slots_) return true;
    }
    if (!has_asked_) channel_.ask(sent_, cursor_.signature());
    has_asked_ = true;
    return has_offer_word();
  }
  ORIEL_DEVICE_FN bool has_offer_word() {
    offer_ = channel_.offered_word();
    return offer_ >> kSignatureBits == sent_ + 1;
  }
  ORIEL_DEVICE_FN bool take_offer() {
    has_asked_ = false;
    const bool differs = Group::rank() == 0 && offer_ != ready_word(sent_, cursor_.signature());
    if (differs) report_failure(arguments_, FailureKind::world_signature, peer());
    if (Group::any(differs)) return false;
    const std::uint64_t offset = channel_.offered_offset();
    cursor_.set_direct(offset != kNoOffset);
    is_read_ = offset == kReads;
    if (cursor_.is_direct()) target_ = channel_.at_peer(offset);
    return true;
  }

  const ExchangeArguments& arguments_;
  DataOps& ops_;
  PeerChannel<Group, M, kForm == ExchangeForm::any> channel_;
  MessageCursor<kForm == ExchangeForm::packets> cursor_;
  std::uint64_t sent_ = 0;
  std::uint64_t credit_ = 0;
  std::uint64_t packets_sent_ = 0;
  std::uint64_t packet_credit_ = 0;  // last loaded value; nearly always enough for the next slot
  std::uint64_t offer_ = 0;
  std::byte* target_ = nullptr;  // the channel's part at the receiver, if it bypasses slots
  bool has_asked_ = false;
  bool is_exposed_ = false;  // the receiver may still read this message, or an earlier one
  // CPU ranks:
  std::int32_t index_;          // index of the peer in the team
  bool is_read_ = false;        // the receiver reads this message itself
  bool goes_in_slots_ = false;  // no offer is awaited, or the receiver was to read but cannot
};

template <class Group, class DataOps, class M, ExchangeForm kForm>
class ReceiveStream {
 public:
  ORIEL_DEVICE_FN ReceiveStream(const ExchangeArguments& arguments, DataOps& ops, std::int32_t run,
                                std::int32_t channel)
      : arguments_(arguments),
        ops_(ops),
        channel_(arguments, arguments.run[run], channel),
        cursor_(arguments, channel_.layout(), run, channel),
        index_(arguments.run[run].team_member - 1) {
    if (cursor_.done()) return;
    const ChannelCounters* const counters = channel_.counters();
    received_ = device::Memory::load<device::Order::weak>(&counters->received);
    packets_received_ = device::Memory::load<device::Order::weak>(&counters->packets_received);
    packets_returned_ = device::Memory::load<device::Order::weak>(&counters->packets_returned);
    // Needs no release on a GPU: the previous kernel has ended, and its loads with it.
    constexpr auto kOrder = ORIEL_DEVICE_CODE ? device::Order::relaxed : device::Order::release;
    const std::uint64_t least = ORIEL_DEVICE_CODE ? 1 : packets_owed();
    if (cursor_.in_packets() && packets_received_ - packets_returned_ >= least)
      return_packet_credit<kOrder>();
    offer_place();
  }

  ORIEL_DEVICE_FN bool done() const { return cursor_.done(); }
  ORIEL_DEVICE_FN std::int32_t peer() const { return channel_.peer(); }
  ORIEL_DEVICE_FN bool is_ready() {
    if (cursor_.in_packets()) return has_packets() || is_filled();
    if (has_packets_instead_) return true;
    word_ = channel_.ready(received_);
    // Fails early on a request with another signature: its sender is not going to fill the slot.
    if (is_next(word_)) return !is_question() || differs();
    if (++polls_ % kPollsPerPacketCheck == 0) has_packets_instead_ = has_unexpected_packets();
    return has_packets_instead_;
  }
  ORIEL_DEVICE_FN bool step() {
    if (cursor_.in_packets()) return receive_packets();
    // Checks the word in thread 0, which has called is_ready().
    const bool is_other = Group::rank() == 0 && (has_packets_instead_ || differs());
    if (is_other) report_failure(arguments_, FailureKind::world_signature, peer());
    if (Group::any(is_other)) return false;
    if constexpr (kForm == ExchangeForm::one_gpu) {
      if (Group::any(Group::rank() == 0 && (word_ & kPulled) != 0)) return pull();
    }
    if constexpr (DataOps::kReads) {
      begin_timed();
      if (cursor_.asks() && (word_ & kInSlots) != 0) {
        reads_ = false;
        cursor_.set_direct(false);
      }
      if (reads_ && cursor_.is_direct()) {
        if (exposed() == nullptr) return begin_again();
        if (!read()) return false;
      }
    }
    if (!cursor_.is_direct()) {
      ops_.place(cursor_.data(), channel_.arrived(received_), cursor_.bytes());
    }
    if (!channel_.return_credit(++received_)) return false;
    if constexpr (DataOps::kReads) end_timed();
    cursor_.advance();
    if (!done()) prepare();
    return true;
  }
  ORIEL_DEVICE_FN void finish() {
    if (Group::rank() != 0) return;
    ChannelCounters* const counters = channel_.counters();
    device::Memory::store<device::Order::weak>(&counters->received, received_);
    device::Memory::store<device::Order::weak>(&counters->packets_received, packets_received_);
    device::Memory::store<device::Order::weak>(&counters->packets_returned, packets_returned_);
  }

 private:
  /// Polls of a slot between two checks whether the sender has sent packets instead.
  static constexpr std::uint32_t kPollsPerPacketCheck = 64;
  /// Timeout of the wait for an abort after a failed read, before the failure is reported.
  static constexpr std::uint64_t kTimeoutNs = 1'500'000'000;

  /// Copies the part that the slot names from the sender's window.
  ORIEL_DEVICE_FN bool pull() {
    const auto* const slot = reinterpret_cast<const std::uint64_t*>(channel_.arrived(received_));
    const auto offset = device::Memory::load<device::Order::relaxed>(slot);
    const auto bytes = device::Memory::load<device::Order::relaxed>(slot + 1);
    ops_.place(cursor_.data(), channel_.at_peer(offset), bytes);
    if (!channel_.return_credit(++received_)) return false;
    cursor_.advance_by(bytes);
    if (!done()) prepare();
    return true;
  }
  /// Returns the number of packet slots whose credit is returned together. At the beginning of a
  /// launch, where it needs no fence, a GPU returns all that it owes.
  ORIEL_DEVICE_FN std::uint64_t packets_owed() const {
    return ORIEL_DEVICE_CODE ? 2 : channel_.layout().packet_depth / 2;
  }
  /// Returns whether `word` is a ready word of the next slot.
  ORIEL_DEVICE_FN bool is_next(std::uint64_t word) const {
    return (word & ~(kAsks | kInSlots)) >> kSignatureBits == received_ + 1;
  }
  /// Returns whether the sender has filled the next slot, or requests the place of its message.
  ORIEL_DEVICE_FN bool is_filled() const { return is_next(channel_.ready(received_)); }
  /// Returns the header that the next packets must have: the next slot and the message's signature.
  ORIEL_DEVICE_FN std::uint64_t header() const {
    return ready_word(received_, cursor_.signature());
  }
  /// Returns whether a step has something to do. Always true on a GPU, where each thread of the
  /// group waits for its own packets in the step.
  ORIEL_DEVICE_FN bool has_packets() const {
    if (ORIEL_DEVICE_CODE) return true;
    const PacketSlot<Group, M> slot = channel_.packets_from(packets_received_);
    return slot.has_arrived(cursor_.bytes()) || slot.has_other_header(header());
  }
  /// Returns whether the sender has sent packets although this rank expects a filled slot.
  ORIEL_DEVICE_FN bool has_unexpected_packets() const {
    if (channel_.layout().packet_bytes == 0) return false;
    std::uint64_t header = 0;
    return channel_.packets_from(packets_received_).has_header(header) && is_next(header);
  }
  ORIEL_DEVICE_FN bool receive_packets() {
    const PacketSlot<Group, M> slot = channel_.packets_from(packets_received_);
    // Checks packets once more after a filled slot or a request: packets sent before it have
    // arrived.
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
    if (is_other) report_failure(arguments_, FailureKind::world_signature, peer());
    if (Group::any(!good)) return false;
    ++packets_received_;
    cursor_.advance();
    if (!done()) prepare();
    return true;
  }
  /// Sends the sender what it may need for the next message: an offer, and packet credit that is
  /// due.
  ORIEL_DEVICE_FN void prepare() {
    offer_place();
    if (!cursor_.in_packets()) return;
    if (packets_received_ - packets_returned_ >= packets_owed()) {
      return_packet_credit<device::Order::release>();
    }
  }
  template <device::Order kOrder>
  ORIEL_DEVICE_FN void return_packet_credit() {
    channel_.template return_packet_credit<kOrder>(packets_received_);
    packets_returned_ = packets_received_;
  }
  ORIEL_DEVICE_FN bool is_question() const { return (word_ & kAsks) != 0; }
  ORIEL_DEVICE_FN bool differs() const {
    return (word_ & ((1u << kSignatureBits) - 1)) != cursor_.signature();
  }
  /// Sends the offer for the next message without waiting for the sender's request. Does nothing if
  /// the message has none.
  ORIEL_DEVICE_FN void offer_place() {
    if (!cursor_.asks()) return;
    std::uint64_t offset = channel_.offset_of(cursor_.data());
    if constexpr (DataOps::kReads) {
      reads_ = offset == kNoOffset && ops_.can_read(index_, cursor_.message_bytes());
      if (reads_) offset = kernels::kReads;
    }
    cursor_.set_direct(offset != kNoOffset);
    channel_.offer(received_, cursor_.signature(), offset);
  }
  void begin_timed() {
    if (cursor_.asks() && ops_.is_timed(index_, cursor_.message_bytes())) {
      started_ns_ = ops_.now_ns();
    }
  }
  void end_timed() {
    if (started_ns_ == 0 || !cursor_.is_last_step()) return;
    // Skips a message stored straight into a window: it was neither read nor moved through slots.
    if (reads_ || !cursor_.is_direct()) {
      ops_.note(index_, reads_, started_ns_, cursor_.message_bytes());
    }
    started_ns_ = 0;
  }
  /// Returns the address of this step's data in the sender's memory; null if it cannot be read.
  const std::byte* exposed() const {
    return reinterpret_cast<const std::byte*>(device::Memory::load<device::Order::relaxed>(
        reinterpret_cast<const std::uint64_t*>(channel_.arrived(received_))));
  }
  /// Restarts the message through slots, from its first byte on.
  bool begin_again() {
    reads_ = false;
    started_ns_ = 0;
    cursor_.set_direct(false);
    return channel_.return_credit(++received_);
  }
  /// Copies this step's data from the sender's memory.
  bool read() {
    if (ops_.read(index_, cursor_.data(), exposed(), cursor_.bytes())) return true;
    // Waits for an abort first: if the sender has died or its call has failed, other code names it
    // and ends this wait. Reports `unreadable` only after the timeout.
    device::WaitControl timeout = arguments_.wait;
    timeout.timeout_ns = kTimeoutNs;
    timeout.stall = nullptr;
    const auto never = [] { return false; };
    const auto outcome = device::wait_until<M>(never, timeout, {peer(), 0});
    if (outcome == device::WaitOutcome::timed_out) {
      report_failure(arguments_, FailureKind::unreadable, peer());
    }
    return false;
  }

  const ExchangeArguments& arguments_;
  DataOps& ops_;
  PeerChannel<Group, M, kForm == ExchangeForm::any> channel_;
  MessageCursor<kForm == ExchangeForm::packets> cursor_;
  std::uint64_t received_ = 0;
  std::uint64_t word_ = 0;
  std::uint64_t packets_received_ = 0;
  std::uint64_t packets_returned_ = 0;  // packet slots for which credit has been returned
  std::uint32_t polls_ = 0;
  bool has_packets_instead_ = false;
  // CPU ranks:
  std::int32_t index_;            // index of the peer in the team
  bool reads_ = false;            // this message is read from its sender's memory
  std::uint64_t started_ns_ = 0;  // start of the first step of a timed message; 0: none
};

/// Runs one stream to its end with a group of threads. While the stream has to wait, `other()` does
/// a piece of other work and returns true, or returns false if none is left. Returns false, for all
/// threads of the group, if a wait was given up or a step failed.
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
