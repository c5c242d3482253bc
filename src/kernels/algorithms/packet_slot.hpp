// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/group.hpp"
#include "oriel/device/packet.hpp"
#include "oriel/device/rounding.hpp"

#include "kernels/algorithms/payload.hpp"
#include "kernels/plan/exchange.hpp"

/// One slot of a channel's ring of packets: a header, then the data, 8 bytes per packet. All
/// packets carry the flag of the slot's number, so packets of an earlier message are never
/// accepted.
namespace oriel::kernels {

/// Period of the sweep, in slots of a channel. The first use of each slot in a period writes all
/// its packets. Flags repeat after 2^32 slots, so a packet that short messages leave unwritten
/// would otherwise look fresh. The flag 0, which no other packet of the library has, needs no
/// special case: it occurs only in slots that have been used.
inline constexpr std::uint64_t kPacketSweep = std::uint64_t{1} << 30;

/// Moves data between a user's buffer and a slot, with all threads of a group.
template <class Group, class M>
class PacketSlot {
 public:
  /// Refers to slot `number` of a channel. It lies at `slot`, in this rank's memory or a peer's.
  ORIEL_DEVICE_FN PacketSlot(std::byte* slot, std::uint64_t number)
      : packets_(reinterpret_cast<device::Packet16*>(slot)),
        flag_(static_cast<std::uint32_t>(number + 1)) {}

  /// Returns the bytes that a message of `bytes` bytes takes in a slot.
  static ORIEL_DEVICE_FN std::uint64_t memory_of(std::uint64_t bytes) {
    return (1 + packets_of(bytes)) * sizeof(device::Packet16);
  }

  /// Sends `header` and `bytes` bytes from `from`. `fill` is the least number of packets to write
  /// behind the header; 0: only the data.
  ORIEL_DEVICE_FN void send(std::uint64_t header, const std::byte* from, std::uint64_t bytes,
                            std::uint64_t fill) const {
#if ORIEL_DEVICE_CODE
    if (Group::rank() == 0) device::Packet16::send<M>(packets_, header, flag_);
#endif
    with_buffer(from, bytes, [&](const auto& buffer) { send_data(buffer, fill); });
#if !ORIEL_DEVICE_CODE
    // Stores the header last and with release. So a receiver that has the message also sees the
    // sender's earlier stores, those in windows included. On a GPU, the end of the previous kernel
    // ensures this.
    const std::uint64_t flag = std::uint64_t{flag_} << 32;
    M::template store<device::Order::relaxed>(&packets_->bits.half[1], flag | header >> 32);
    M::template store<device::Order::release>(&packets_->bits.half[0],
                                              flag | (header & 0xffffffffu));
#endif
  }

  /// Returns whether a header has arrived. One thread calls.
  ORIEL_DEVICE_FN bool has_header(std::uint64_t& header) const {
#if !ORIEL_DEVICE_CODE
    const auto first = M::template load<device::Order::acquire>(&packets_->bits.half[0]);
    if (static_cast<std::uint32_t>(first >> 32) != flag_) return false;
#endif
    return device::Packet16::try_receive<M>(packets_, flag_, header);
  }
  /// Returns whether a header other than `expected` has arrived. One thread calls.
  ORIEL_DEVICE_FN bool has_other_header(std::uint64_t expected) const {
    std::uint64_t header = 0;
    return has_header(header) && header != expected;
  }
  /// Returns whether the header and `bytes` bytes have arrived. One thread calls.
  ORIEL_DEVICE_FN bool has_arrived(std::uint64_t bytes) const {
    std::uint64_t data = 0;
    if (!has_header(data)) return false;
    for (std::uint64_t i = 1; i <= packets_of(bytes); ++i) {
      if (!device::Packet16::try_receive<M>(packets_ + i, flag_, data)) return false;
    }
    return true;
  }
  /// Waits until thread 0 has the header `expected`, and until `bytes` bytes are in `to`. Each
  /// thread waits only for its own packets. Calls `await(arrived)` for a long wait; it returns
  /// whether `arrived()` became true. Returns false, for this thread, if it did not, or if another
  /// header came.
  template <class Await>
  ORIEL_DEVICE_FN bool receive(std::uint64_t expected, std::byte* to, std::uint64_t bytes,
                               const Await& await) const {
    bool good = true;
    with_buffer(to, bytes,
                [&](const auto& buffer) { good = receive_data(expected, buffer, await); });
    return good;
  }

 private:
  static constexpr int kDataBytes = device::Packet16::kDataBytes;
  /// Polls before the wait that an abort or a timeout can end: its code would slow down short
  /// waits.
  static constexpr std::uint32_t kQuickPolls = 256;
#if ORIEL_DEVICE_CODE
  static constexpr std::uint32_t kUnroll = 4;
#else
  static constexpr std::uint32_t kUnroll = 1;
#endif

  static ORIEL_DEVICE_FN std::uint64_t packets_of(std::uint64_t bytes) {
    return device::divide_up(bytes, kDataBytes);
  }
  /// Calls `action` with the buffer at `address`, as 4-byte words if address and size allow it.
  template <class Byte, class Action>
  static ORIEL_DEVICE_FN void with_buffer(Byte* address, std::uint64_t bytes,
                                          const Action& action) {
    if (((reinterpret_cast<std::uintptr_t>(address) | bytes) & 3) == 0) {
      action(UserBuffer<std::uint32_t, kDataBytes>(address, bytes / 4));
    } else {
      action(UserBuffer<std::uint8_t, kDataBytes>(address, bytes));
    }
  }

  template <class Buffer>
  ORIEL_DEVICE_FN void send_data(const Buffer& buffer, std::uint64_t fill) const {
    const std::uint64_t packets = buffer.payloads();
    const std::uint64_t step = Group::size();
    for (std::uint64_t i = Group::rank(); i < packets; i += kUnroll * step) {
      std::uint64_t data[kUnroll];
      ORIEL_DEVICE_UNROLL
      for (std::uint32_t u = 0; u < kUnroll; ++u) {
        if (i + u * step >= packets) continue;
        data[u] = __builtin_bit_cast(std::uint64_t, buffer.load(i + u * step));
      }
      ORIEL_DEVICE_UNROLL
      for (std::uint32_t u = 0; u < kUnroll; ++u) {
        if (i + u * step >= packets) continue;
        device::Packet16::send<M>(packets_ + 1 + i + u * step, data[u], flag_);
      }
    }
    for (std::uint64_t i = packets + Group::rank(); i < fill; i += step) {
      device::Packet16::send<M>(packets_ + 1 + i, 0, flag_);
    }
  }

  template <class Buffer, class Await>
  ORIEL_DEVICE_FN bool receive_data(std::uint64_t expected, const Buffer& buffer,
                                    const Await& await) const {
    const std::uint64_t packets = buffer.payloads();
    const std::uint64_t step = Group::size();
    bool needs_header = Group::rank() == 0;
    std::uint64_t header = expected;
    for (std::uint64_t i = Group::rank(); i < packets; i += kUnroll * step) {
      std::uint64_t data[kUnroll];
      // Issues all loads first, so that they overlap; mostly the packets have arrived.
      const auto arrived = [&] {
        bool fresh = !needs_header || has_header(header);
        if (fresh && header != expected) return true;  // the rest may never come
        ORIEL_DEVICE_UNROLL
        for (std::uint32_t u = 0; u < kUnroll; ++u) {
          if (i + u * step >= packets) continue;
          const bool one =
              device::Packet16::try_receive<M>(packets_ + 1 + i + u * step, flag_, data[u]);
          fresh = fresh && one;
        }
        return fresh;
      };
      ORIEL_DEVICE_KEEP_LOOP
      for (std::uint32_t poll = 0; !arrived(); ++poll) {
        if (poll < kQuickPolls) continue;
        if (!await(arrived)) return false;
        break;
      }
      if (header != expected) return false;
      needs_header = false;
      ORIEL_DEVICE_UNROLL
      for (std::uint32_t u = 0; u < kUnroll; ++u) {
        if (i + u * step >= packets) continue;
        using Value = typename Buffer::Value;
        buffer.store(i + u * step, __builtin_bit_cast(Value, data[u]));
      }
    }
    return true;
  }

  device::Packet16* packets_;
  std::uint32_t flag_;
};

}  // namespace oriel::kernels
