// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/memory.hpp"
#include "oriel/device/wait.hpp"

#include "kernels/algorithms/places.hpp"
#include "kernels/algorithms/reduction.hpp"

/// Lines: 16-byte slots whose content shows by itself whether it has arrived, so that no fence,
/// flag or barrier is needed between sender and receiver.
namespace oriel::kernels {

/// A line all of whose 16 bytes are payload. An empty slot is all ones; the line has arrived once
/// no unit of it is all ones any more. Only for floats: all ones is a NaN in every format, the
/// sender replaces it by another one, and results hold canonical NaNs anyway. The receiver empties
/// the slot again. The idea is that of the Lamport buffers in TensorRT-LLM's one-shot all-reduce.
///
/// Relies on the indivisibility of one unit only (4 bytes; 8 for f64), which PTX promises for each
/// element of a vector access.
template <class T>
struct SentinelLine {
  static constexpr int kBytes = 16;
  using Raw = std::conditional_t<sizeof(T) == 8, device::Pair, device::Pack>;

  ORIEL_DEVICE_FN static Raw encode(const Payload<T, kBytes>& payload) {
    Raw raw = __builtin_bit_cast(Raw, payload);
    if constexpr (sizeof(T) == 8) {
      raw.half[0] = other_nan(raw.half[0]);
      raw.half[1] = other_nan(raw.half[1]);
    } else {
      ORIEL_DEVICE_UNROLL
      for (int i = 0; i < 4; ++i) raw.word[i] = other_nan(raw.word[i]);
    }
    return raw;
  }
  ORIEL_DEVICE_FN static void send(std::byte* slot, Raw raw, std::uint32_t /*flag*/) {
    device::Memory::store<device::Order::relaxed>(reinterpret_cast<Raw*>(slot), raw);
  }
  ORIEL_DEVICE_FN static Raw load(const std::byte* slot) {
    return device::Memory::load<device::Order::relaxed>(reinterpret_cast<const Raw*>(slot));
  }
  ORIEL_DEVICE_FN static bool arrived(const Raw& raw, std::uint32_t /*flag*/) {
    if constexpr (sizeof(T) == 8) {
      return raw.half[0] != ~std::uint64_t{0} && raw.half[1] != ~std::uint64_t{0};
    } else {
      return raw.word[0] != ~0u && raw.word[1] != ~0u && raw.word[2] != ~0u && raw.word[3] != ~0u;
    }
  }
  ORIEL_DEVICE_FN static Payload<T, kBytes> payload(const Raw& raw) {
    return __builtin_bit_cast(Payload<T, kBytes>, raw);
  }
  ORIEL_DEVICE_FN static void empty(std::byte* slot) {
    device::Memory::store<device::Order::weak>(reinterpret_cast<device::Pack*>(slot),
                                               device::Pack{{~0u, ~0u, ~0u, ~0u}});
  }

 private:
  template <class Unit>
  ORIEL_DEVICE_FN static Unit other_nan(Unit unit) {
    return unit == static_cast<Unit>(~Unit{0}) ? static_cast<Unit>(unit >> 1) : unit;
  }
};

/// A line of 8 bytes of payload, each half of it beside the epoch's flag. For every type, on GPUs
/// and CPUs. Relies on the indivisibility of 8 bytes.
template <class T>
struct FlaggedLine {
  static constexpr int kBytes = 8;
  using Raw = device::Pair;

  ORIEL_DEVICE_FN static std::uint64_t encode(const Payload<T, kBytes>& payload) {
    return __builtin_bit_cast(std::uint64_t, payload);
  }
  ORIEL_DEVICE_FN static void send(std::byte* slot, std::uint64_t payload, std::uint32_t flag) {
    const std::uint64_t high = static_cast<std::uint64_t>(flag) << 32;
    const Raw raw{{(payload & 0xffffffffu) | high, (payload >> 32) | high}};
    device::Memory::store<device::Order::relaxed>(reinterpret_cast<Raw*>(slot), raw);
  }
  ORIEL_DEVICE_FN static Raw load(const std::byte* slot) {
    return device::Memory::load<device::Order::relaxed>(reinterpret_cast<const Raw*>(slot));
  }
  ORIEL_DEVICE_FN static bool arrived(const Raw& raw, std::uint32_t flag) {
    return static_cast<std::uint32_t>(raw.half[0] >> 32) == flag &&
           static_cast<std::uint32_t>(raw.half[1] >> 32) == flag;
  }
  ORIEL_DEVICE_FN static Payload<T, kBytes> payload(const Raw& raw) {
    return __builtin_bit_cast(Payload<T, kBytes>, (raw.half[0] & 0xffffffffu) | raw.half[1] << 32);
  }
  /// On a GPU both kinds of line share the slots, so they are left as SentinelLine wants them.
  ORIEL_DEVICE_FN static void empty([[maybe_unused]] std::byte* slot) {
#if ORIEL_DEVICE_CODE
    SentinelLine<float>::empty(slot);
#endif
  }
};

/// Flags of lines and greetings: never 0 (fresh memory) and never all ones (an empty slot).
ORIEL_DEVICE_FN constexpr std::uint32_t flag_of(std::uint32_t epoch) {
  return epoch % 0x7fffffffu + 1;
}

/// The line slots between this CTA and the CTAs of the same index on all other ranks, for one call.
/// `stages` slots per line and source: a two-shot algorithm has two.
///
/// A slot is used again two calls later (see kParities), so no rank ever waits for room.
template <class Line, int kRanks>
class Lanes {
 public:
#if ORIEL_DEVICE_CODE
  static constexpr int kMaxRanks = kRanks > 0 ? kRanks : 8;
#else
  static constexpr int kMaxRanks = kRanks > 0 ? kRanks : 64;
#endif

  /// One line from each of the other ranks, in registers.
  struct Arrivals {
    typename Line::Raw raw[kMaxRanks];
    template <class T>
    ORIEL_DEVICE_FN Payload<T, Line::kBytes> payload(int rank) const {
      return Line::payload(raw[rank]);
    }
  };

  ORIEL_DEVICE_FN Lanes(const AllReduceArguments& arguments, const Places& places, int stages)
      : arguments_(arguments),
        places_(places),
        epoch_(device::Memory::load<device::Order::weak>(&places.counters()->line_epoch)),
        lane_bytes_(arguments.layout.lane_bytes[stages - 1]) {}

  ORIEL_DEVICE_FN int ranks() const {
    return kRanks > 0 ? kRanks : arguments_.ranks;
  }

  /// Calls action(rank) for every other rank, each rank beginning with its right-hand neighbour, so
  /// that not all of them write to the same one at once.
  template <class Action>
  ORIEL_DEVICE_FN void for_each_peer(const Action& action) const {
    ORIEL_DEVICE_UNROLL
    for (int distance = 1; distance < kMaxRanks; ++distance) {
      if (kRanks == 0 && distance >= arguments_.ranks) break;
      const int rank = arguments_.rank + distance;
      action(rank < ranks() ? rank : rank - ranks());
    }
  }

  /// The same in rank order, with an index that is a constant after unrolling: what Arrivals holds
  /// stays in registers only so.
  template <class Action>
  ORIEL_DEVICE_FN void for_each_source(const Action& action) const {
    ORIEL_DEVICE_UNROLL
    for (int rank = 0; rank < kMaxRanks; ++rank) {
      if (kRanks == 0 && rank >= arguments_.ranks) break;
      if (rank != arguments_.rank) action(rank);
    }
  }

  template <class Encoded>
  ORIEL_DEVICE_FN void send(int rank, int stage, std::uint64_t line, const Encoded& encoded) const {
    Line::send(slot(rank, stage, line, arguments_.rank), encoded, flag_of(epoch_));
  }
  template <class Encoded>
  ORIEL_DEVICE_FN void send_to_all(int stage, std::uint64_t line, const Encoded& encoded) const {
    for_each_peer([&](int rank) { send(rank, stage, line, encoded); });
  }

  /// Wakes the ranks that sleep for want of what has been sent; nothing on a GPU.
  ORIEL_DEVICE_FN void publish() const {
    device::ring_fence();
    for_each_peer([&](int rank) { device::ring_fenced(places_.doorbell(rank)); });
  }

  /// Waits for the line of every rank for which exists(rank) holds and empties its slots. False if
  /// the wait was given up: the caller sends nothing more.
  template <class Exists>
  ORIEL_DEVICE_FN bool receive_from(int stage, std::uint64_t line, Arrivals& arrivals,
                                    const Exists& exists) const {
    const std::uint32_t flag = flag_of(epoch_);
    const int me = arguments_.rank;
    // All loads first: they overlap, and mostly find what they want.
    ORIEL_DEVICE_UNROLL
    for (int rank = 0; rank < kMaxRanks; ++rank) {
      if (kRanks == 0 && rank >= arguments_.ranks) break;
      if (rank == me || !exists(rank)) continue;
      arrivals.raw[rank] = Line::load(slot(me, stage, line, rank));
    }
    ORIEL_DEVICE_UNROLL
    for (int rank = 0; rank < kMaxRanks; ++rank) {
      if (kRanks == 0 && rank >= arguments_.ranks) break;
      if (rank == me || !exists(rank)) continue;
      std::byte* const from = slot(me, stage, line, rank);
      if (!Line::arrived(arrivals.raw[rank], flag)) {
        const auto arrived = [&] {
          arrivals.raw[rank] = Line::load(from);
          return Line::arrived(arrivals.raw[rank], flag);
        };
        if (device::wait_until(arrived, arguments_.wait, {rank, epoch_}) !=
            device::WaitOutcome::ready) {
          return false;
        }
      }
      Line::empty(from);
    }
    return true;
  }
  ORIEL_DEVICE_FN bool receive_from_all(int stage, std::uint64_t line, Arrivals& arrivals) const {
    return receive_from(stage, line, arrivals, [](int) { return true; });
  }

  /// Ends the call for this CTA: the next one uses the other parity. Every thread calls it.
  template <class Group>
  ORIEL_DEVICE_FN void end_epoch() const {
    Group::sync();  // all threads have read the epoch
    if (Group::rank() == 0) {
      device::Memory::store<device::Order::weak>(&places_.counters()->line_epoch, epoch_ + 1);
    }
  }

 private:
  ORIEL_DEVICE_FN std::byte* slot(int owner, int stage, std::uint64_t line, int source) const {
    const auto lane = static_cast<std::uint64_t>(stage) * static_cast<std::uint64_t>(ranks() - 1) +
                      slot_of(source, owner, ranks());
    return places_.lines(owner, epoch_ & 1) + lane * lane_bytes_ + line * 16;
  }

  const AllReduceArguments& arguments_;
  const Places& places_;
  std::uint32_t epoch_;
  std::uint64_t lane_bytes_;
};

ORIEL_DEVICE_FN constexpr std::uint64_t smaller(std::uint64_t a, std::uint64_t b) {
  return a < b ? a : b;
}

/// Whether a thread sends all its lines before it waits for the first. A CPU's single thread does;
/// on a GPU neighbours do the overlapping, and a thread keeps its one line in registers.
inline constexpr bool kSendsAhead = !ORIEL_DEVICE_CODE;

/// How many lines to send, of those that every `step`-th of the `left` ones makes.
ORIEL_DEVICE_FN std::uint64_t lines_in_flight(std::uint64_t left, std::uint64_t step) {
  return kSendsAhead ? (left + step - 1) / step : 1;
}

}  // namespace oriel::kernels
