// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/wait.hpp"

/// Packets that carry their own flag: a receiver knows from the packet alone that the data is
/// there, so that no fence, barrier or second message is needed. They lie in the receiver's memory,
/// which starts as zeros; the sender writes, the receiver polls.
///
/// Rule of flags. A flag is a 32-bit epoch that the sender and the receiver of a packet know in
/// advance and that differs from what the packet held before. Zero is never a flag: next_flag skips
/// it. 2^32 - 1 is a multiple of 3, so that `flag % kRotation` with kRotation = 3 walks through the
/// rotating buffers without a break where the flag wraps.
/// A packet that is not written for 2^32 - 1 epochs would hold a flag that looks fresh (at 1 us an
/// epoch that takes 72 minutes). Its receiver therefore clears one packet per epoch: stale_packet
/// says which.
namespace oriel::device {

/// Buffers that take turns, one epoch each: peers may still be reading the last one, and the
/// fastest peer may already write the next one.
inline constexpr std::uint32_t kRotation = 3;
static_assert(0xffffffffu % kRotation == 0, "rotation must not break where the flag wraps");

/// The flag that follows `flag`; never zero.
constexpr ORIEL_DEVICE_FN std::uint32_t next_flag(std::uint32_t flag) {
  return flag == 0xffffffffu ? 1u : flag + 1u;
}

/// Which packet of an inbox of `packets` packets (1 to 2^30) is to be cleared after the inbox's
/// turn with flag `flag`. The thread that receives this packet clears it, once it has received the
/// corresponding packet of the epoch after `flag` and before it sends those of the next: until then
/// no peer can write it. In this way each packet is cleared once in kRotation * packets epochs.
constexpr ORIEL_DEVICE_FN std::uint32_t stale_packet(std::uint32_t flag, std::uint32_t packets) {
  return flag / kRotation % packets;
}

/// 8 bytes on the wire, 4 of data, for CPUs and GPUs. Relies on 8-byte accesses being indivisible,
/// which C++ (for lock-free atomics) and PTX both promise.
struct alignas(8) Packet8 {
  using Data = std::uint32_t;
  static constexpr std::size_t kDataBytes = sizeof(Data);

  std::uint64_t bits;  ///< data in the low half, flag in the high half

  /// Writes data and flag (not zero) into the receiver's memory. Relaxed: it orders nothing but
  /// itself. Local, not blocking. CPU senders ring the receiver's doorbell after their last packet.
  template <class M = Memory>
  static ORIEL_DEVICE_FN void send(Packet8* to, Data data, std::uint32_t flag) {
    M::template store<Order::relaxed, Scope::system>(
        &to->bits, (static_cast<std::uint64_t>(flag) << 32) | data);
  }

  /// Loads the packet; true if it carries `flag`, and then `data` is what was sent with it, else
  /// `data` is unspecified (a condition would keep a GPU from having several loads in flight).
  /// Local, not blocking.
  template <class M = Memory>
  [[nodiscard]] static ORIEL_DEVICE_FN bool try_receive(const Packet8* from, std::uint32_t flag,
                                                        Data& data) {
    const std::uint64_t bits = M::template load<Order::relaxed, Scope::system>(&from->bits);
    data = static_cast<Data>(bits);
    return static_cast<std::uint32_t>(bits >> 32) == flag;
  }

  /// Makes the packet carry no flag. By the receiver, when no sender can write it (stale_packet).
  /// Relaxed: what tells the senders that they may write it again orders it. Local, not blocking.
  template <class M = Memory>
  static ORIEL_DEVICE_FN void clear(Packet8* packet) {
    M::template store<Order::relaxed, Scope::system>(&packet->bits, std::uint64_t{0});
  }
};
static_assert(sizeof(Packet8) == 8);

/// 16 bytes on the wire, 8 of data, moved by one vector access on a GPU. PTX promises that each
/// 8-byte element of a vector access is indivisible, not that both arrive together: hence a flag in
/// each half.
struct alignas(16) Packet16 {
  using Data = std::uint64_t;
  static constexpr std::size_t kDataBytes = sizeof(Data);

  Pair bits;  ///< each half: 4 bytes of data below, the flag above

  /// As Packet8::send.
  template <class M = Memory>
  static ORIEL_DEVICE_FN void send(Packet16* to, Data data, std::uint32_t flag) {
    const std::uint64_t high = static_cast<std::uint64_t>(flag) << 32;
    M::template store<Order::relaxed, Scope::system>(
        &to->bits, Pair{{high | (data & 0xffffffffu), high | (data >> 32)}});
  }

  /// As Packet8::try_receive; true only if both halves carry `flag`.
  template <class M = Memory>
  [[nodiscard]] static ORIEL_DEVICE_FN bool try_receive(const Packet16* from, std::uint32_t flag,
                                                        Data& data) {
    const Pair bits = M::template load<Order::relaxed, Scope::system>(&from->bits);
    data = (bits.half[0] & 0xffffffffu) | (bits.half[1] << 32);
    return static_cast<std::uint32_t>(bits.half[0] >> 32) == flag &&
           static_cast<std::uint32_t>(bits.half[1] >> 32) == flag;
  }

  /// As Packet8::clear.
  template <class M = Memory>
  static ORIEL_DEVICE_FN void clear(Packet16* packet) {
    M::template store<Order::relaxed, Scope::system>(&packet->bits, Pair{{0, 0}});
  }
};
static_assert(sizeof(Packet16) == 16);

/// Waits for the packet at `from` to carry `flag` and fetches its data, which is unspecified after
/// any other outcome than `ready`. Local, blocking. `sender` is the world rank that a stall record
/// names.
template <class Packet, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN WaitOutcome receive(const Packet* from, std::uint32_t flag,
                                                  typename Packet::Data& data,
                                                  const WaitControl& control, std::int32_t sender) {
  return wait_until<M>([&] { return Packet::template try_receive<M>(from, flag, data); }, control,
                       WaitTarget{sender, flag});
}

/// As receive, for kCount packets that lie `stride` packets apart: each poll loads all of them, so
/// that their latencies overlap.
template <int kCount, class Packet, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN WaitOutcome receive_all(const Packet* first, std::size_t stride,
                                                      std::uint32_t flag,
                                                      typename Packet::Data (&data)[kCount],
                                                      const WaitControl& control,
                                                      std::int32_t sender) {
  return wait_until<M>(
      [&] {
        bool fresh = true;
#if ORIEL_DEVICE_CODE
#pragma unroll
#endif
        for (int i = 0; i < kCount; ++i) {
          const bool one = Packet::template try_receive<M>(
              first + static_cast<std::size_t>(i) * stride, flag, data[i]);
          fresh = fresh && one;
        }
        return fresh;
      },
      control, WaitTarget{sender, flag});
}

}  // namespace oriel::device
