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
/// peer, or folds those of all peers. Each step moves one slot, and can move once is_ready() is
/// true. A GPU gives each stream a group of threads, which waits for it; a CPU thread goes through
/// all its streams and waits only when none can move. So no stream waits for another of the same
/// rank.
///
/// A step returns false if the peer's message is not the one that this rank's call expects, or the
/// queue to it has failed. M: the memory policy. kFar: some peers are of other teams.
namespace oriel::kernels {

/// Tells the host that `rank` is in another call.
ORIEL_DEVICE_FN void report_other_message(const ExchangeArguments& arguments, std::int32_t rank) {
  if (arguments.failure == nullptr) return;
  // One 8-byte store, so that kind and rank are read together.
  device::Memory::store<device::Order::release>(
      reinterpret_cast<std::uint64_t*>(arguments.failure),
      static_cast<std::uint64_t>(FailureKind::world_signature) |
          static_cast<std::uint64_t>(static_cast<std::uint32_t>(rank)) << 32);
}

template <class Group, class Mover, class M = device::Memory, bool kFar = false>
class SendStream {
 public:
  ORIEL_DEVICE_FN SendStream(const ExchangeArguments& arguments, Mover& mover, std::int32_t run,
                             std::int32_t lane)
      : mover_(mover),
        lane_(arguments, arguments.run[run], lane),
        cursor_(arguments, lane_.layout(), run, lane) {
    if (cursor_.done()) return;
    sent_ = device::Memory::load<device::Order::weak>(&lane_.counters()->sent);
    credit_ = sent_;  // looked up when a slot is needed: the last call may have left some full
    credit_ -= lane_.layout().depth;
  }

  ORIEL_DEVICE_FN bool done() const { return cursor_.done(); }
  ORIEL_DEVICE_FN std::int32_t peer() const { return lane_.peer(); }
  /// Any one thread of the group.
  ORIEL_DEVICE_FN bool is_ready() {
    if (has_slot()) return true;
    credit_ = lane_.credit();
    return has_slot();
  }
  ORIEL_DEVICE_FN bool step() {
    const std::uint64_t bytes = cursor_.bytes();
    mover_.send(lane_.filled(sent_), cursor_.data(), bytes);
    if (!lane_.publish(sent_, bytes, cursor_.signature())) return false;
    ++sent_;
    cursor_.advance();
    return true;
  }
  ORIEL_DEVICE_FN void finish() {
    if (Group::rank() == 0) {
      device::Memory::store<device::Order::weak>(&lane_.counters()->sent, sent_);
    }
  }

 private:
  ORIEL_DEVICE_FN bool has_slot() const {
    return static_cast<std::int64_t>(sent_ - credit_) <
           static_cast<std::int64_t>(lane_.layout().depth);
  }

  Mover& mover_;
  ChannelLane<Group, M, kFar> lane_;
  LaneCursor cursor_;
  std::uint64_t sent_ = 0;
  std::uint64_t credit_ = 0;
};

template <class Group, class Mover, class M = device::Memory, bool kFar = false>
class ReceiveStream {
 public:
  ORIEL_DEVICE_FN ReceiveStream(const ExchangeArguments& arguments, Mover& mover, std::int32_t run,
                                std::int32_t lane)
      : arguments_(arguments),
        mover_(mover),
        lane_(arguments, arguments.run[run], lane),
        cursor_(arguments, lane_.layout(), run, lane) {
    if (cursor_.done()) return;
    received_ = device::Memory::load<device::Order::weak>(&lane_.counters()->received);
  }

  ORIEL_DEVICE_FN bool done() const { return cursor_.done(); }
  ORIEL_DEVICE_FN std::int32_t peer() const { return lane_.peer(); }
  ORIEL_DEVICE_FN bool is_ready() {
    word_ = lane_.ready(received_);
    return word_ >> kSignatureBits == received_ + 1;
  }
  ORIEL_DEVICE_FN bool step() {
    // Only the thread that has called is_ready() has the word.
    const bool differs =
        Group::rank() == 0 && (word_ & ((1u << kSignatureBits) - 1)) != cursor_.signature();
    if (differs) report_other_message(arguments_, peer());
    if (Group::any(differs)) return false;
    mover_.receive(cursor_.data(), lane_.arrived(received_), cursor_.bytes());
    if (!lane_.give_back(++received_)) return false;
    cursor_.advance();
    return true;
  }
  ORIEL_DEVICE_FN void finish() {
    if (Group::rank() == 0) {
      device::Memory::store<device::Order::weak>(&lane_.counters()->received, received_);
    }
  }

 private:
  const ExchangeArguments& arguments_;
  Mover& mover_;
  ChannelLane<Group, M, kFar> lane_;
  LaneCursor cursor_;
  std::uint64_t received_ = 0;
  std::uint64_t word_ = 0;
};

/// Folds one lane's part of the block that all other ranks send to this one.
template <class Group, class Mover>
class FoldStream {
 public:
  ORIEL_DEVICE_FN FoldStream(const ExchangeArguments& arguments, Mover& mover, std::int32_t lane)
      : arguments_(arguments), places_(arguments), mover_(mover), lane_(lane) {
    const std::uint64_t bytes = arguments.fold.bytes;
    const LaneCut cut = cut_over_lanes(arguments.channels, bytes);
    if (lane >= cut.lanes) return;
    at_ = static_cast<std::uint64_t>(lane) * cut.piece;
    end_ = at_ + cut.piece < bytes ? at_ + cut.piece : bytes;
    skip_own();
  }

  ORIEL_DEVICE_FN bool done() const { return at_ >= end_; }
  /// The peer that this rank waits for, when is_ready() has returned false.
  ORIEL_DEVICE_FN std::int32_t peer() const { return next_ < arguments_.ranks ? next_ : 0; }
  ORIEL_DEVICE_FN bool is_ready() {
    for (; next_ < arguments_.ranks; skip_own()) {
      const std::uint64_t number = number_of(next_);
      const std::uint64_t word = device::Memory::load<device::Order::acquire>(
          reinterpret_cast<const std::uint64_t*>(places_.here(lane_of(next_).ready(number))));
      if (word >> kSignatureBits != number + 1) return false;
      differs_ = differs_ || (word & ((1u << kSignatureBits) - 1)) != arguments_.fold_signature;
      if (differs_) return true;
      ++next_;
    }
    return true;
  }
  ORIEL_DEVICE_FN bool step() {
    if (Group::rank() == 0 && differs_) report_other_message(arguments_, next_);
    if (Group::any(differs_)) return false;
    const std::uint64_t left = end_ - at_;
    const std::uint64_t slot = arguments_.channels.slot_bytes;
    const std::uint64_t bytes = left < slot ? left : slot;
    mover_.fold(
        arguments_.fold.output + at_, arguments_.fold.input + at_,
        [&](std::int32_t rank) -> const std::byte* {
          return places_.here(lane_of(rank).slot(number_of(rank)));
        },
        bytes);
    Group::sync();
    ++moved_;
    for (auto rank = static_cast<std::int32_t>(Group::rank()); rank < arguments_.ranks;
         rank += static_cast<std::int32_t>(Group::size())) {
      if (rank == arguments_.rank) continue;
      auto* const credit = places_.at(rank, lane_of(rank).credit_at_peer());
      device::Memory::store<device::Order::release>(reinterpret_cast<std::uint64_t*>(credit),
                                                    number_of(rank));
      places_.wake(rank);
    }
    at_ += bytes;
    next_ = 0;
    skip_own();
    return true;
  }
  ORIEL_DEVICE_FN void finish() {
    Group::sync();  // all have read the counters
    for (auto rank = static_cast<std::int32_t>(Group::rank()); rank < arguments_.ranks;
         rank += static_cast<std::int32_t>(Group::size())) {
      if (rank == arguments_.rank) continue;
      const std::uint64_t number = number_of(rank);
      device::Memory::store<device::Order::weak>(&counters(rank)->received, number);
    }
  }

 private:
  /// The slot that comes next from `rank`: each peer sends as many.
  ORIEL_DEVICE_FN std::uint64_t number_of(std::int32_t rank) const {
    return device::Memory::load<device::Order::weak>(&counters(rank)->received) + moved_;
  }
  ORIEL_DEVICE_FN LanePlaces lane_of(std::int32_t rank) const {
    return {arguments_.channels, arguments_.rank, rank, lane_};
  }
  ORIEL_DEVICE_FN ChannelCounters* counters(std::int32_t rank) const {
    return reinterpret_cast<ChannelCounters*>(places_.here(lane_of(rank).counters()));
  }
  ORIEL_DEVICE_FN void skip_own() {
    if (next_ == arguments_.rank) ++next_;
  }

  const ExchangeArguments& arguments_;
  ChannelPlaces places_;
  Mover& mover_;
  std::int32_t lane_;
  std::uint64_t at_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t moved_ = 0;
  std::int32_t next_ = 0;  // the first peer whose slot has not been seen
  bool differs_ = false;
};

/// Runs one stream with a group of threads to its end. False, for all threads of the group, if a
/// wait was given up or a peer is in another call.
template <class Group, class Stream>
ORIEL_DEVICE_FN bool run_stream(const device::WaitControl& wait, Stream stream) {
  if (stream.done()) return true;
  while (!stream.done()) {
    bool alive = true;
    while (alive && Group::rank() == 0 && !stream.is_ready()) {
      // A wait ends when its peer has come, so that a stall names the one that is still missing.
      const std::int32_t peer = stream.peer();
      const auto moved_on = [&] { return stream.is_ready() || stream.peer() != peer; };
      alive = device::wait_until(moved_on, wait, {peer, 0}) == device::WaitOutcome::ready;
    }
    if (Group::any(!alive)) return false;
    if (!stream.step()) return false;
  }
  stream.finish();
  return true;
}

}  // namespace oriel::kernels
