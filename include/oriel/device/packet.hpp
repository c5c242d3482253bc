// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/wait.hpp"

/// Packets that carry their own flag. A receiver knows from the packet alone that the data has
/// arrived, so no fence, barrier or second message is needed. The method is that of NCCL's protocol
/// LL: data and flags alternate in memory. Packets lie in the receiver's memory, which is initially
/// zero. The sender writes, and the receiver polls. Each thread calls these functions for itself.
/// All functions but receive() and receive_all() do not block. No function orders memory: packets
/// are loaded and stored in relaxed order.
///
/// Flags. A flag is a 32-bit epoch that the sender and the receiver of a packet know in advance. It
/// differs from the previous content of the packet. Zero is never a flag: next_flag skips it.
/// 2^32 - 1 is a multiple of 3. So `flag % kRotation` with kRotation = 3 walks through the rotating
/// buffers without a break when the flag wraps.
///
/// If a packet is not written for 2^32 - 1 epochs, its old flag looks fresh again. At 1 us per
/// epoch this takes 72 minutes. Its receiver therefore clears one packet per epoch: stale_packet
/// returns which one.
///
/// Example: exchanges one word with LSA rank `peer`. Each inbox has kRotation packets.
/// ```cpp
/// #include "oriel/device/comm.hpp"
/// ORIEL_DEVICE_FN bool exchange(const oriel::device::CommView& comm, std::int32_t peer,
///                               oriel::device::Packet8* there, oriel::device::Packet8* here,
///                               std::uint32_t& flag, std::uint32_t& word) {
///   using namespace oriel::device;
///   const std::uint32_t turn = flag % kRotation;
///   Packet8::send(there + turn, word, flag);
///   comm.ring_lsa_peers();
///   const auto outcome = receive(here + turn, flag, word, comm.wait, comm.world_rank_of(peer));
///   flag = next_flag(flag);
///   return outcome == WaitOutcome::ready;
/// }
/// ```
namespace oriel::device {

/// Number of buffers that take turns, one epoch each. Peers may still read the last buffer while
/// the fastest peer already writes the next one.
inline constexpr std::uint32_t kRotation = 3;
static_assert(0xffffffffu % kRotation == 0, "rotation must not break where the flag wraps");

/// Returns the flag that follows `flag`; never zero.
constexpr ORIEL_DEVICE_FN std::uint32_t next_flag(std::uint32_t flag) {
  return flag == 0xffffffffu ? 1u : flag + 1u;
}

/// Returns the packet to clear after the turn of an inbox with flag `flag`. The inbox has `packets`
/// packets (1 to 2^30). The thread that receives this packet clears it. It does so after it has
/// received the corresponding packet of the epoch after `flag`. It does so before it sends the
/// packets of the following epoch, since no peer can write the packet until then. Each packet is
/// thus cleared once in kRotation * packets epochs.
constexpr ORIEL_DEVICE_FN std::uint32_t stale_packet(std::uint32_t flag, std::uint32_t packets) {
  return flag / kRotation % packets;
}

/// Packet of 8 bytes on the wire, 4 of them data, for CPUs and GPUs. Relies on indivisible 8-byte
/// accesses, which C++ (for lock-free atomics) and PTX both guarantee.
struct alignas(8) Packet8 {
  using Data = std::uint32_t;                              ///< data of one packet
  static constexpr std::size_t kDataBytes = sizeof(Data);  ///< bytes of data of one packet

  std::uint64_t bits;  ///< data in the low half, flag in the high half

  /// Writes data and flag (not zero) into the receiver's memory. Relaxed: orders no other access.
  /// Local; not blocking. CPU senders ring the receiver's doorbell after their last packet.
  template <class M = Memory>
  static ORIEL_DEVICE_FN void send(Packet8* to, Data data, std::uint32_t flag) {
    M::template store<Order::relaxed, Scope::system>(
        &to->bits, (static_cast<std::uint64_t>(flag) << 32) | data);
  }

  /// Loads the packet and returns whether it carries `flag`. If so, `data` is the sent data,
  /// otherwise it is unspecified: a condition would keep a GPU from having several loads in flight.
  /// Local; not blocking.
  template <class M = Memory>
  [[nodiscard]] static ORIEL_DEVICE_FN bool try_receive(const Packet8* from, std::uint32_t flag,
                                                        Data& data) {
    const std::uint64_t bits = M::template load<Order::relaxed, Scope::system>(&from->bits);
    data = static_cast<Data>(bits);
    return static_cast<std::uint32_t>(bits >> 32) == flag;
  }

  /// Clears the flag of the packet. The receiver calls it while no sender can write the packet
  /// (stale_packet). Relaxed: the message that permits the senders to write again must order it.
  /// Local; not blocking.
  template <class M = Memory>
  static ORIEL_DEVICE_FN void clear(Packet8* packet) {
    M::template store<Order::relaxed, Scope::system>(&packet->bits, std::uint64_t{0});
  }
};
static_assert(sizeof(Packet8) == 8);

/// Packet of 16 bytes on the wire, 8 of them data, moved by one vector access on a GPU. PTX
/// guarantees that each 8-byte element of a vector access is indivisible, not that both arrive
/// together. Therefore each half has a flag.
struct alignas(16) Packet16 {
  using Data = std::uint64_t;                              ///< data of one packet
  static constexpr std::size_t kDataBytes = sizeof(Data);  ///< bytes of data of one packet

  Pair bits;  ///< each half: 4 bytes of data below, the flag above

  /// Sends as Packet8::send does.
  template <class M = Memory>
  static ORIEL_DEVICE_FN void send(Packet16* to, Data data, std::uint32_t flag) {
    const std::uint64_t high = static_cast<std::uint64_t>(flag) << 32;
    M::template store<Order::relaxed, Scope::system>(
        &to->bits, Pair{{high | (data & 0xffffffffu), high | (data >> 32)}});
  }

  /// Receives as Packet8::try_receive does. Returns true only if both halves carry `flag`.
  template <class M = Memory>
  [[nodiscard]] static ORIEL_DEVICE_FN bool try_receive(const Packet16* from, std::uint32_t flag,
                                                        Data& data) {
    const Pair bits = M::template load<Order::relaxed, Scope::system>(&from->bits);
    data = (bits.half[0] & 0xffffffffu) | (bits.half[1] << 32);
    return static_cast<std::uint32_t>(bits.half[0] >> 32) == flag &&
           static_cast<std::uint32_t>(bits.half[1] >> 32) == flag;
  }

  /// Clears the flags as Packet8::clear does.
  template <class M = Memory>
  static ORIEL_DEVICE_FN void clear(Packet16* packet) {
    M::template store<Order::relaxed, Scope::system>(&packet->bits, Pair{{0, 0}});
  }
};
static_assert(sizeof(Packet16) == 16);

/// Waits until the packet at `from` carries `flag`, and returns its data in `data`. After any
/// outcome but `ready`, `data` is unspecified. Local; blocking. `sender` is the world rank for the
/// stall record.
template <class Packet, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN WaitOutcome receive(const Packet* from, std::uint32_t flag,
                                                  typename Packet::Data& data,
                                                  const WaitControl& control, std::int32_t sender) {
  return wait_until<M>([&] { return Packet::template try_receive<M>(from, flag, data); }, control,
                       WaitTarget{sender, flag});
}

/// Receives kCount packets that lie `stride` packets apart, the i-th into `data[i]`. Each poll
/// loads all of them, so their latencies overlap. Otherwise behaves as receive.
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
