// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/doorbell.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/window.hpp"

#include "kernels/plan/exchange.hpp"
#include "kernels/plan/layout.hpp"

/// The two ends of a channel (plan/channel_layout.hpp).
///
/// Memory order. The sender stores a slot's data, then its ready word with release; the receiver
/// loads that word with acquire before it reads the data. The receiver reads the data, then stores
/// the credit with release; the sender loads the credit with acquire before it writes the slot
/// again. In a group of threads, one thread does these accesses and a sync() joins it to the
/// others.
namespace oriel::kernels {

/// Addresses of channels, by arithmetic alone.
class ChannelPlaces {
 public:
  ORIEL_DEVICE_FN explicit ChannelPlaces(const ExchangeArguments& arguments)
      : arguments_(arguments) {}

  ORIEL_DEVICE_FN std::byte* at(std::int32_t rank, std::uint64_t offset) const {
    return device::advance_4g(arguments_.scratch + offset,
                              arguments_.stride_4g * static_cast<std::uint32_t>(rank));
  }
  /// Of this rank.
  ORIEL_DEVICE_FN ChannelCounters* counters(std::int32_t peer, std::int32_t lane) const {
    const std::uint64_t index = channel(arguments_.rank, peer, lane);
    return reinterpret_cast<ChannelCounters*>(
        at(arguments_.rank, arguments_.channels.counters + index * sizeof(ChannelCounters)));
  }
  /// Slots that `receiver` has emptied of those that `sender` fills.
  ORIEL_DEVICE_FN std::uint64_t* credit(std::int32_t sender, std::int32_t receiver,
                                        std::int32_t lane) const {
    const std::uint64_t index = channel(sender, receiver, lane);
    return reinterpret_cast<std::uint64_t*>(
        at(sender, arguments_.channels.credits + index * kSectorBytes));
  }
  /// `number + 1 << kSignatureBits | signature` once slot `number` holds data.
  ORIEL_DEVICE_FN std::uint64_t* ready(std::int32_t receiver, std::int32_t sender,
                                       std::int32_t lane, std::uint64_t number) const {
    const std::uint64_t index = channel(receiver, sender, lane);
    return reinterpret_cast<std::uint64_t*>(at(
        receiver,
        arguments_.channels.ready + index * kSectorBytes + place(number) * sizeof(std::uint64_t)));
  }
  ORIEL_DEVICE_FN std::byte* slot(std::int32_t receiver, std::int32_t sender, std::int32_t lane,
                                  std::uint64_t number) const {
    const std::uint64_t index =
        channel(receiver, sender, lane) * arguments_.channels.depth + place(number);
    return at(receiver, arguments_.channels.rings + index * arguments_.channels.slot_bytes);
  }
  /// CPU ranks: wakes `rank` if it sleeps. Nothing on a GPU.
  ORIEL_DEVICE_FN void wake([[maybe_unused]] std::int32_t rank) const {
#if !ORIEL_DEVICE_CODE
    device::ring(*reinterpret_cast<device::Doorbell*>(at(rank, arguments_.doorbell)));
#endif
  }

 private:
  ORIEL_DEVICE_FN std::uint64_t place(std::uint64_t number) const {
    return number & (arguments_.channels.depth - 1);
  }
  /// Index of a channel among those that `owner` keeps state of.
  ORIEL_DEVICE_FN std::uint64_t channel(std::int32_t owner, std::int32_t peer,
                                        std::int32_t lane) const {
    return std::uint64_t{slot_of(peer, owner, arguments_.ranks)} *
               static_cast<std::uint64_t>(arguments_.channels.lanes) +
           static_cast<std::uint64_t>(lane);
  }

  const ExchangeArguments& arguments_;
};

/// The messages of one launch between this rank and a peer in one direction, as one lane of the
/// channel moves them: a slot at a time.
class LaneCursor {
 public:
  ORIEL_DEVICE_FN LaneCursor(const ExchangeArguments& arguments, std::int32_t lane,
                             std::int32_t first, std::int32_t last)
      : arguments_(arguments), lane_(lane), item_(first), last_(last) {
    enter();
  }

  ORIEL_DEVICE_FN bool done() const { return item_ >= last_; }
  ORIEL_DEVICE_FN std::byte* data() const { return message().data + at_; }
  ORIEL_DEVICE_FN std::uint32_t signature() const { return message().signature; }
  /// Bytes that the next slot carries.
  ORIEL_DEVICE_FN std::uint64_t bytes() const {
    const std::uint64_t left = end_ - at_;
    return left < arguments_.channels.slot_bytes ? left : arguments_.channels.slot_bytes;
  }
  ORIEL_DEVICE_FN void advance() {
    at_ += bytes();
    if (at_ < end_) return;
    ++item_;
    enter();
  }

 private:
  ORIEL_DEVICE_FN const Message& message() const { return arguments_.message[item_]; }
  /// Goes to this lane's part of the next message that has one.
  ORIEL_DEVICE_FN void enter() {
    for (; item_ < last_; ++item_) {
      const LaneCut cut = cut_over_lanes(arguments_.channels, message().bytes);
      if (lane_ >= cut.lanes) continue;
      at_ = static_cast<std::uint64_t>(lane_) * cut.piece;
      end_ = at_ + cut.piece < message().bytes ? at_ + cut.piece : message().bytes;
      return;
    }
  }

  const ExchangeArguments& arguments_;
  std::int32_t lane_;
  std::int32_t item_;
  std::int32_t last_;
  std::uint64_t at_ = 0;   // offset in the message
  std::uint64_t end_ = 0;  // of the lane's part
};

}  // namespace oriel::kernels
