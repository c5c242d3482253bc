// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/memory.hpp"
#include "oriel/device/rounding.hpp"
#include "oriel/device/wait.hpp"

#include "kernels/algorithms/places.hpp"
#include "kernels/algorithms/reduction.hpp"

/// Lines: 16-byte slots whose content shows whether it has arrived. Sender and receiver need no
/// fence, barrier or separate flag between them.
namespace oriel::kernels {

/// Flag that a line carries beside its payload (see line_flag). On a GPU, both halves carry the
/// flag of the call. On a CPU, the second half carries the call's signature. So a line of another
/// call matches this call only if both signatures, which are hashes, are equal.
#if ORIEL_DEVICE_CODE
using LineFlag = std::uint32_t;
#else
struct LineFlag {
  std::uint32_t epoch;
  std::uint32_t signature;
};
#endif

/// A line all of whose 16 bytes are payload. An empty slot is all ones; the line has arrived once
/// no unit of it is all ones. Only for floats: all ones is a NaN in every format, the sender
/// replaces it by another NaN, and results hold canonical NaNs anyway. The receiver empties the
/// slot again. The idea is that of the Lamport buffers in TensorRT-LLM's one-shot all-reduce.
///
/// Relies on single-copy atomicity of one unit only (4 bytes; 8 for f64), which PTX promises for
/// each element of a vector access.
template <class T>
struct SentinelLine {
  static constexpr int kBytes = 16;
  static constexpr bool kHasNotes = false;
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
  ORIEL_DEVICE_FN static void send(std::byte* slot, Raw raw, LineFlag /*flag*/) {
    device::Memory::store<device::Order::relaxed>(reinterpret_cast<Raw*>(slot), raw);
  }
  ORIEL_DEVICE_FN static Raw load(const std::byte* slot) {
    return device::Memory::load<device::Order::relaxed>(reinterpret_cast<const Raw*>(slot));
  }
  ORIEL_DEVICE_FN static bool arrived(const Raw& raw, LineFlag /*flag*/) {
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

/// A line of 8 bytes of payload; each half of the payload lies beside a flag. For every type, on
/// GPUs and CPUs. Relies on single-copy atomicity of 8 bytes. A CPU writes the half with the epoch
/// last and reads it first, so the epoch proves that both halves have arrived.
template <class T>
struct FlaggedLine {
  using Element = T;
  static constexpr int kBytes = 8;
  static constexpr bool kHasNotes = false;
  using Raw = device::Pair;

  ORIEL_DEVICE_FN static std::uint64_t encode(const Payload<T, kBytes>& payload) {
    return __builtin_bit_cast(std::uint64_t, payload);
  }
#if ORIEL_DEVICE_CODE
  ORIEL_DEVICE_FN static void send(std::byte* slot, std::uint64_t payload, LineFlag flag) {
    const std::uint64_t high = static_cast<std::uint64_t>(flag) << 32;
    const Raw raw{{(payload & 0xffffffffu) | high, (payload >> 32) | high}};
    device::Memory::store<device::Order::relaxed>(reinterpret_cast<Raw*>(slot), raw);
  }
  ORIEL_DEVICE_FN static Raw load(const std::byte* slot) {
    return device::Memory::load<device::Order::relaxed>(reinterpret_cast<const Raw*>(slot));
  }
  ORIEL_DEVICE_FN static bool arrived(const Raw& raw, LineFlag flag) {
    return static_cast<std::uint32_t>(raw.half[0] >> 32) == flag &&
           static_cast<std::uint32_t>(raw.half[1] >> 32) == flag;
  }
#else
  ORIEL_DEVICE_FN static void send(std::byte* slot, std::uint64_t payload, LineFlag flag) {
    auto* const halves = reinterpret_cast<std::uint64_t*>(slot);
    device::Memory::store<device::Order::relaxed>(
        halves + 1, (payload >> 32) | static_cast<std::uint64_t>(flag.signature) << 32);
    device::Memory::store<device::Order::release>(
        halves, (payload & 0xffffffffu) | static_cast<std::uint64_t>(flag.epoch) << 32);
  }
  ORIEL_DEVICE_FN static Raw load(const std::byte* slot) {
    const auto* const halves = reinterpret_cast<const std::uint64_t*>(slot);
    const auto first = device::Memory::load<device::Order::acquire>(halves);
    return Raw{{first, device::Memory::load<device::Order::relaxed>(halves + 1)}};
  }
  ORIEL_DEVICE_FN static bool arrived(const Raw& raw, LineFlag flag) {
    return static_cast<std::uint32_t>(raw.half[0] >> 32) == flag.epoch &&
           static_cast<std::uint32_t>(raw.half[1] >> 32) == flag.signature;
  }
#endif
  ORIEL_DEVICE_FN static Payload<T, kBytes> payload(const Raw& raw) {
    return __builtin_bit_cast(Payload<T, kBytes>, (raw.half[0] & 0xffffffffu) | raw.half[1] << 32);
  }
  /// Empties the slot on a GPU, where both kinds of line share the slots: SentinelLine needs them
  /// empty.
  ORIEL_DEVICE_FN static void empty([[maybe_unused]] std::byte* slot) {
#if ORIEL_DEVICE_CODE
    SentinelLine<float>::empty(slot);
#endif
  }
};

/// A line all of whose 16 bytes are payload, of any bits. Like a SentinelLine, it has arrived once
/// no word of it is all ones. The sender replaces each word that is all ones by a mark, and also
/// each word that equals the mark. Such a line has a note, a FlaggedLine in a slot of its own: it
/// tells which marks stand for all ones. Other lines cost half the bytes of flagged ones.
///
/// Relies on single-copy atomicity of 4 bytes in a line, and of 8 bytes in a note.
template <class T>
struct EscapedLine {
  using Element = T;
  static constexpr int kBytes = 16;
  static constexpr bool kHasNotes = true;
  static constexpr std::uint32_t kMark = 0x7ac39e5bu;  ///< arbitrary; data should seldom have it
  using Note = FlaggedLine<std::uint64_t>;
  using Raw = device::Pack;
  struct Encoded {
    Raw raw;
    std::uint32_t note;  ///< bit i: word i is marked; bit 4 + i: it is all ones; 0: no note
  };

  ORIEL_DEVICE_FN static Encoded encode(const Payload<T, kBytes>& payload) {
    Encoded encoded{__builtin_bit_cast(Raw, payload), 0};
    ORIEL_DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      std::uint32_t& word = encoded.raw.word[i];
      if (word != kEmpty && word != kMark) continue;
      encoded.note |= (word == kEmpty ? 0x11u : 0x01u) << i;
      word = kMark;
    }
    return encoded;
  }
  ORIEL_DEVICE_FN static void send(std::byte* slot, const Encoded& encoded, LineFlag /*flag*/) {
    device::Memory::store<device::Order::relaxed>(reinterpret_cast<Raw*>(slot), encoded.raw);
  }
  ORIEL_DEVICE_FN static Raw load(const std::byte* slot) {
    return device::Memory::load<device::Order::relaxed>(reinterpret_cast<const Raw*>(slot));
  }
  ORIEL_DEVICE_FN static bool arrived(const Raw& raw, LineFlag /*flag*/) {
    return raw.word[0] != kEmpty && raw.word[1] != kEmpty && raw.word[2] != kEmpty &&
           raw.word[3] != kEmpty;
  }
  /// Returns whether a line that has arrived has a note.
  ORIEL_DEVICE_FN static bool has_note(const Raw& raw) {
    return raw.word[0] == kMark || raw.word[1] == kMark || raw.word[2] == kMark ||
           raw.word[3] == kMark;
  }
  /// Replaces the marks by what they stand for.
  ORIEL_DEVICE_FN static void restore(Raw& raw, std::uint32_t note) {
    ORIEL_DEVICE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if ((note >> (4 + i) & 1) != 0) raw.word[i] = kEmpty;
    }
  }
  ORIEL_DEVICE_FN static Payload<T, kBytes> payload(const Raw& raw) {
    return __builtin_bit_cast(Payload<T, kBytes>, raw);
  }
  ORIEL_DEVICE_FN static void empty(std::byte* slot) { SentinelLine<float>::empty(slot); }

 private:
  static constexpr std::uint32_t kEmpty = ~0u;
};

/// Selects the kind of line for reductions of type T. Integers are reduced in flagged lines:
/// with escaped ones 16 bytes take 1.14 to 1.16 of the time (docs/notes/streams.md).
#if defined(__CUDACC__)
template <class T>
using LineFor = std::conditional_t<std::is_floating_point_v<T> || device::kIsSmallFloat<T>,
                                   SentinelLine<T>, FlaggedLine<T>>;
#else
// A CPU loads 16 bytes as two halves anyway, and flags need no emptying of slots.
template <class T>
using LineFor = FlaggedLine<T>;
#endif

/// Returns the flag of lines and handshake messages in `epoch`: never 0 (fresh memory), never all
/// ones (an empty slot). The slots of a parity are used in every second epoch. So their flags all
/// differ until the epochs repeat after 2^32 calls, also across the wrap.
///
/// Nothing stays in a slot that long. A GPU empties each line that it has read. A CPU rank empties
/// all slots now and then (see kSweepEpochs). Handshake messages are written anew in each call.
ORIEL_DEVICE_FN constexpr std::uint32_t flag_of(std::uint32_t epoch) {
  return epoch / 2 + 1;
}

ORIEL_DEVICE_FN constexpr LineFlag line_flag(std::uint32_t epoch,
                                             [[maybe_unused]] std::uint32_t signature) {
#if ORIEL_DEVICE_CODE
  return flag_of(epoch);
#else
  return {flag_of(epoch), signature};
#endif
}

/// Polls of a line before the wait that an abort or a timeout can end.
inline constexpr std::uint32_t kQuickPolls = 256;

/// Period in which CPU ranks empty the slots of each parity once. A short message leaves the lines
/// of a longer one before it as they are. After 2^32 epochs they would match a current flag.
inline constexpr std::uint32_t kSweepEpochs = 1u << 30;

/// Makes `bytes` bytes of slots look like fresh memory. A fence orders this before any line that is
/// sent afterwards.
ORIEL_DEVICE_SLOW void empty_slots(std::byte* slots, std::uint32_t bytes) {
  for (std::uint32_t at = 0; at < bytes; at += kLineBytes) {
    device::Memory::store<device::Order::relaxed>(reinterpret_cast<device::Pair*>(slots + at),
                                                  device::Pair{{0, 0}});
  }
  device::Memory::fence<device::Scope::system>();
}

/// Waits until the line in `slot` has arrived. Returns false if the wait was given up.
template <class Line>
ORIEL_DEVICE_SLOW bool await_line(const std::byte* slot, LineFlag flag, device::WaitTarget target,
                                  const AllReduceArguments& arguments) {
  const auto arrived = [&] { return Line::arrived(Line::load(slot), flag); };
  return device::wait_until(arrived, arguments.wait, target) == device::WaitOutcome::ready;
}

/// Waits for the note of a line of `Line`, which is sent beside the line, and empties its slot.
/// Returns 0 if the wait was given up.
template <class Line>
ORIEL_DEVICE_SLOW std::uint32_t await_note(std::byte* slot, LineFlag flag,
                                           device::WaitTarget target,
                                           const AllReduceArguments& arguments) {
  using Note = typename Line::Note;
  if (!await_line<Note>(slot, flag, target, arguments)) return 0;
  const auto note = Note::payload(Note::load(slot)).element[0];
  Line::empty(slot);  // other lines may use the slot
  return static_cast<std::uint32_t>(note);
}

/// Line slots between this CTA and the CTAs of the same index on all other ranks, for one call.
/// Each line has `stages` slots per source: two in a two-shot all-reduce, otherwise one. A line
/// with notes has as many slots for notes.
///
/// A slot is used again two calls later (see kParities), so no rank ever waits for space.
template <class Line, int kRanks>
class LineExchange {
 public:
#if ORIEL_DEVICE_CODE
  static constexpr int kMaxRanks = kRanks > 0 ? kRanks : 8;
#else
  static constexpr int kMaxRanks = kRanks > 0 ? kRanks : 64;
#endif

  /// One line from each of the other ranks, in registers. The right-hand neighbour comes first,
  /// then the next ranks around the ring. In this order, sources and indices are constants after
  /// unrolling.
  struct Arrivals {
    typename Line::Raw raw[kMaxRanks];
  };

  /// Computes only what does not depend on the last call; call begin() once that call has ended.
  ORIEL_DEVICE_FN LineExchange(const AllReduceArguments& arguments, const Places& places,
                               GridPlace place, int stages)
      : arguments_(arguments),
        places_(places),
        own_(places.scratch(arguments.rank, 0)),
        offset_(arguments.layout.lines + place.cta * arguments.layout.line_bytes),
        source_bytes_(arguments.layout.source_bytes[stages - 1]) {
    if constexpr (kRanks > 0) {
      for_each_peer([&](int rank, int place_of_peer) {
        peers_[place_of_peer] = places.scratch(rank, 0);
        device::keep_in_register(peers_[place_of_peer]);
      });
    }
    device::keep_in_register(own_);
  }

  ORIEL_DEVICE_FN void begin() {
    epoch_ = device::Memory::load<device::Order::weak>(&places_.counters()->line_epoch);
    offset_ += (epoch_ & 1) * arguments_.layout.parity_bytes;
  }

  ORIEL_DEVICE_FN int ranks() const {
    return kRanks > 0 ? kRanks : arguments_.ranks;
  }

  /// Calls action(rank, place) for every other rank, in the order of Arrivals. Each rank begins
  /// with its right-hand neighbour, so that not all ranks write to the same one at once.
  template <class Action>
  ORIEL_DEVICE_FN void for_each_peer(const Action& action) const {
    ORIEL_DEVICE_UNROLL
    for (int place = 0; place < kMaxRanks - 1; ++place) {
      if (kRanks == 0 && place >= arguments_.ranks - 1) break;
      action(peer_at(place), place);
    }
  }

  template <class Encoded>
  ORIEL_DEVICE_FN void send(int rank, int place, int stage, std::uint32_t line,
                            const Encoded& encoded) const {
    // Addresses the peer's slot for this rank: seen from the peer, this rank is at the opposite
    // place.
    std::byte* const base = kRanks > 0 ? peers_[place] : places_.scratch(rank, 0);
    std::byte* const to = base + slot(ranks() - 2 - place, stage, line);
    const LineFlag flag = line_flag(epoch_, arguments_.signature);
    Line::send(to, encoded, flag);
    if constexpr (Line::kHasNotes) {
      if (encoded.note != 0) Line::Note::send(note_of(to), encoded.note, flag);
    }
  }
  template <class Encoded>
  ORIEL_DEVICE_FN void send_to_all(int stage, std::uint32_t line, const Encoded& encoded) const {
    for_each_peer([&](int rank, int place) { send(rank, place, stage, line, encoded); });
  }

  /// Rings the doorbells of all other ranks, in case they sleep in a wait for these lines. Does
  /// nothing on a GPU.
  ORIEL_DEVICE_FN void publish() const {
    device::ring_fence();
    for_each_peer([&](int rank, int) { device::ring_fenced(places_.doorbell(rank)); });
  }

  /// Waits for the line of every rank for which exists(rank) holds. Empties its slot, but flagged
  /// ones only on a GPU. Returns false if the wait was given up; the caller must then send nothing
  /// more.
  template <class Exists>
  ORIEL_DEVICE_FN bool receive_from(int stage, std::uint32_t line, Arrivals& arrivals,
                                    const Exists& exists) const {
    const LineFlag flag = line_flag(epoch_, arguments_.signature);
    // Issues all loads first, so that they overlap; mostly the lines have arrived.
    for_each_peer([&](int rank, int place) {
      if (exists(rank)) arrivals.raw[place] = Line::load(own_ + slot(place, stage, line));
    });
    ORIEL_DEVICE_UNROLL
    for (int place = 0; place < kMaxRanks - 1; ++place) {
      if (kRanks == 0 && place >= arguments_.ranks - 1) break;
      const int rank = peer_at(place);
      if (!exists(rank)) continue;
      std::byte* const from = own_ + slot(place, stage, line);
      // Polls in a short loop before the long wait. The code and registers of the long wait would
      // otherwise crowd the path that every small message takes.
      typename Line::Raw raw = arrivals.raw[place];
      ORIEL_DEVICE_KEEP_LOOP
      for (std::uint32_t poll = 0; !Line::arrived(raw, flag); ++poll) {
        if (poll == kQuickPolls && !await_line<Line>(from, flag, {rank, epoch_}, arguments_)) {
          return false;
        }
        raw = Line::load(from);
      }
      if constexpr (Line::kHasNotes) {
        if (Line::has_note(raw)) {
          const std::uint32_t note =
              await_note<Line>(note_of(from), flag, {rank, epoch_}, arguments_);
          if (note == 0) return false;
          Line::restore(raw, note);
        }
      }
      arrivals.raw[place] = raw;
      Line::empty(from);
    }
    return true;
  }
  ORIEL_DEVICE_FN bool receive_from_all(int stage, std::uint32_t line, Arrivals& arrivals) const {
    return receive_from(stage, line, arrivals, [](int) { return true; });
  }

  /// Reduces the lines of all ranks: this rank's own and those that have arrived.
  template <class Reduction, class T>
  ORIEL_DEVICE_FN auto reduce(const Reduction& reduction, const Payload<T, Line::kBytes>& mine,
                              const Arrivals& arrivals) const {
    constexpr int kBytes = Line::kBytes;
    Payload<T, kBytes> by_rank[kMaxRanks];
    if constexpr (kRanks > 0) {
      // Selects instead of indexing, because registers cannot be indexed: rotates by the bits of
      // the rank.
      static_assert(kRanks == 2 || kRanks == 4 || kRanks == 8);
      ORIEL_DEVICE_UNROLL
      for (int i = 0; i < kRanks; ++i) {
        const int before = (i + kRanks - 1) % kRanks;
        by_rank[i] = select((arguments_.rank & 1) != 0, own_or(mine, arrivals, before),
                            own_or(mine, arrivals, i));
      }
      ORIEL_DEVICE_UNROLL
      for (int by = 2; by < kRanks; by *= 2) rotate(by_rank, (arguments_.rank & by) != 0, by);
    } else {
      by_rank[arguments_.rank] = mine;
      for_each_peer(
          [&](int rank, int place) { by_rank[rank] = Line::payload(arrivals.raw[place]); });
    }
    return fold_ranks<kRanks, kBytes>(reduction, arguments_.ranks,
                                      [&](int rank) { return by_rank[rank]; });
  }

  /// Ends the call for this CTA; the next call uses the other parity. Every thread must call.
  template <class Group>
  ORIEL_DEVICE_FN void end_epoch() const {
    Group::sync();  // all threads have read the epoch
#if !ORIEL_DEVICE_CODE
    // Empties the slots of this parity: all lines of the call have been read. No rank sends others
    // to these slots before it has received this rank's lines of the next call.
    if (epoch_ % kSweepEpochs >= kSweepEpochs - kParities) {
      empty_slots(own_ + offset_, arguments_.layout.line_bytes);
    }
#endif
    if (Group::rank() == 0) {
      device::Memory::store<device::Order::weak>(&places_.counters()->line_epoch, epoch_ + 1);
    }
  }

 private:
  /// Returns the rank whose line is at `place` of Arrivals.
  ORIEL_DEVICE_FN int peer_at(int place) const {
    const int rank = arguments_.rank + 1 + place;
    return rank < ranks() ? rank : rank - ranks();
  }
  /// Returns the offset in a rank's scratch memory of the line from the peer at `place` (see
  /// slot_of).
  ORIEL_DEVICE_FN std::uint32_t slot(int place, int stage, std::uint32_t line) const {
    const auto source = static_cast<std::uint32_t>(stage * (ranks() - 1) + place);
    return offset_ + source * source_bytes_ + line * 16;
  }

  /// Returns the slot for the note of the line in `slot`. Notes have the second half of a source's
  /// slots.
  ORIEL_DEVICE_FN std::byte* note_of(std::byte* slot) const {
    return slot + source_bytes_ / 2;
  }

  /// Returns the payload of the rank at `distance` to the right; at 0 this rank's own.
  template <class T>
  ORIEL_DEVICE_FN static Payload<T, Line::kBytes> own_or(const Payload<T, Line::kBytes>& mine,
                                                         const Arrivals& arrivals, int distance) {
    return distance == 0 ? mine : Line::payload(arrivals.raw[distance - 1]);
  }
  template <class T>
  ORIEL_DEVICE_FN static void rotate(Payload<T, Line::kBytes> (&payloads)[kMaxRanks], bool turns,
                                     int by) {
    Payload<T, Line::kBytes> turned[kMaxRanks];
    ORIEL_DEVICE_UNROLL
    for (int i = 0; i < kMaxRanks; ++i) {
      turned[i] = select(turns, payloads[(i + kMaxRanks - by) % kMaxRanks], payloads[i]);
    }
    ORIEL_DEVICE_UNROLL
    for (int i = 0; i < kMaxRanks; ++i) payloads[i] = turned[i];
  }
  template <class T>
  ORIEL_DEVICE_FN static Payload<T, Line::kBytes> select(bool first,
                                                         const Payload<T, Line::kBytes>& a,
                                                         const Payload<T, Line::kBytes>& b) {
    using Chosen = Payload<T, Line::kBytes>;
    const auto from_a = __builtin_bit_cast(PayloadWords<Line::kBytes>, a);
    const auto from_b = __builtin_bit_cast(PayloadWords<Line::kBytes>, b);
    PayloadWords<Line::kBytes> chosen;
    ORIEL_DEVICE_UNROLL
    for (int i = 0; i < Line::kBytes / 4; ++i) {
      chosen.word[i] = first ? from_a.word[i] : from_b.word[i];
    }
    return __builtin_bit_cast(Chosen, chosen);
  }

  const AllReduceArguments& arguments_;
  const Places& places_;
  std::byte* peers_[kMaxRanks];  // scratch memory of the rank at each place, unless kRanks is 0
  std::byte* own_;
  std::uint32_t offset_;  // offset in scratch memory of this CTA's slots of the parity
  std::uint32_t source_bytes_;
  std::uint32_t epoch_ = 0;
};

ORIEL_DEVICE_FN constexpr std::uint64_t smaller(std::uint64_t a, std::uint64_t b) {
  return a < b ? a : b;
}

/// True if a thread sends all its lines before it waits for the first. A CPU's single thread does.
/// On a GPU the neighbouring threads overlap, and each keeps its one line in registers.
inline constexpr bool kSendsAhead = !ORIEL_DEVICE_CODE;

/// Returns how many lines a thread sends before it waits: on a CPU, every `step`-th of the `left`
/// ones; on a GPU, one.
ORIEL_DEVICE_FN std::uint64_t lines_in_flight(std::uint64_t left, std::uint64_t step) {
  return kSendsAhead ? device::divide_up(left, step) : 1;
}

}  // namespace oriel::kernels
