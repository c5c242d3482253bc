// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "oriel/device/rounding.hpp"

#include "kernels/algorithms/copy_payloads.hpp"
#include "kernels/algorithms/payload.hpp"
#include "kernels/algorithms/reduction.hpp"

namespace oriel::kernels {

namespace detail {

/// Arithmetic of the loop that moves most of the bytes. It calls no function out of line. An
/// average multiplies by 1 / ranks. For a power of two this gives the same bits as a division.
template <class T, Family kFamily, int kRanks>
class LoopReduction {
  using Acc = device::Accumulator<T>;

 public:
  static constexpr int kMaxRanks = kRanks > 0 ? kRanks : 8;
  struct Places {
    const device::Pack* sources[kMaxRanks];
    device::Pack* targets[kMaxRanks];
    const device::Pack* own = nullptr;  ///< first pack of the own source, if that source is shifted
    std::uint32_t shift = 0;            ///< bytes of that pack before the source
    int me = 0;
  };

  ORIEL_DEVICE_FN LoopReduction(const FamilyReduction<T, kFamily>& reduction, int ranks)
      : reduction_(reduction), ranks_(ranks) {
    if (reduction.averages()) factor_ = Acc(1) / static_cast<Acc>(ranks);
  }
  /// Returns whether this class can do a call's arithmetic. It cannot if the call averages
  /// integers, or averages over a number of ranks that is no power of two.
  ORIEL_DEVICE_FN static bool is_for(const FamilyReduction<T, kFamily>& reduction, int ranks) {
    return !reduction.averages() || (kMultiplies && (ranks & (ranks - 1)) == 0);
  }

  ORIEL_DEVICE_FN int ranks() const { return kRanks > 0 ? kRanks : ranks_; }
  /// Returns this rank's input, scaled if the operation scales.
  ORIEL_DEVICE_FN Payload<T, 16> scale(const device::Pack& pack) const {
    return reduction_.scale(__builtin_bit_cast(Payload<T, 16>, pack));
  }
  template <int kBytes>
  ORIEL_DEVICE_FN auto load(const Payload<T, kBytes>& payload) const {
    return reduction_.load(payload);
  }
  template <int kCount>
  ORIEL_DEVICE_FN auto combine(const AccPack<Acc, kCount>& lower,
                               const AccPack<Acc, kCount>& upper) const {
    return reduction_.combine(lower, upper);
  }
  template <int kBytes, int kCount>
  ORIEL_DEVICE_FN Payload<T, kBytes> finish(AccPack<Acc, kCount> pack) const {
    Payload<T, kBytes> payload;
    ORIEL_DEVICE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kMultiplies) pack.element[i] = pack.element[i] * factor_;
      payload.element[i] = device::Reduction<T, ReduceOp::sum>{}.finish(pack.element[i]);
    }
    return payload;
  }

 private:
  static constexpr bool kMultiplies = kFamily == Family::sum && std::is_floating_point_v<Acc>;

  const FamilyReduction<T, kFamily>& reduction_;
  int ranks_;
  Acc factor_ = Acc(1);
};

/// Variants of reduce_tiles: the number of targets, and the treatment of the own source.
enum class ReduceForm : std::uint8_t {
  all_targets,
  all_targets_scaled,
  one_target,
  one_target_scaled,
  one_target_shifted,
};

/// Reduces the payloads 0 to `count` - 1 of all sources into all targets, or into the first one. In
/// the shifted form, the own source begins at byte `shift` of the pack `own`.
template <class Group, ReduceForm kForm, class T, Family kFamily, int kRanks>
ORIEL_DEVICE_FN void reduce_tiles(const LoopReduction<T, kFamily, kRanks>& reduction,
                                  const typename LoopReduction<T, kFamily, kRanks>::Places& places,
                                  std::uint64_t count) {
  // Keeps eight loads in flight, over all ranks together.
  constexpr int kUnroll = kRanks == 0 ? 1 : 8 / kRanks;
  constexpr int kMaxRanks = LoopReduction<T, kFamily, kRanks>::kMaxRanks;
  constexpr bool kShifted = kForm == ReduceForm::one_target_shifted;
  constexpr bool kScaled =
      kForm == ReduceForm::all_targets_scaled || kForm == ReduceForm::one_target_scaled;
  constexpr bool kAllTargets =
      kForm == ReduceForm::all_targets || kForm == ReduceForm::all_targets_scaled;
  for_each_tile<Group, kUnroll>(count, [&](const auto& tile) {
    constexpr int kUnits = std::remove_cvref_t<decltype(tile)>::kUnits;
    device::Pack packs[kUnits][kMaxRanks];
    [[maybe_unused]] device::Pack own[kUnits];
    ORIEL_DEVICE_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      ORIEL_DEVICE_UNROLL
      for (int rank = 0; rank < kMaxRanks; ++rank) {
        if (kRanks == 0 && rank >= reduction.ranks()) break;
        packs[u][rank] = device::Memory::load_streaming(places.sources[rank] + tile.at(u));
      }
      if constexpr (kShifted) {
        own[u] = join(device::Memory::load_streaming(places.own + tile.at(u)),
                      device::Memory::load_streaming(places.own + tile.at(u) + 1), places.shift);
      }
    }
    ORIEL_DEVICE_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      if (!tile.has(u)) continue;
      if constexpr (kScaled) {
        ORIEL_DEVICE_UNROLL
        for (int rank = 0; rank < kMaxRanks; ++rank) {
          if (rank == 0 || rank == places.me) own[u] = packs[u][rank];
        }
        own[u] = __builtin_bit_cast(device::Pack, reduction.scale(own[u]));
      }
      // Splits packs into elements as late as here: an element of two bytes takes a register of
      // four.
      const auto payload = [&](int rank) {
        const bool is_own = (kShifted || kScaled) && rank == places.me;
        return __builtin_bit_cast(Payload<T, 16>, is_own ? own[u] : packs[u][rank]);
      };
      const auto result = __builtin_bit_cast(
          device::Pack, fold_ranks<kRanks, 16>(reduction, reduction.ranks(), payload));
      ORIEL_DEVICE_UNROLL
      for (int k = 0; k < (kAllTargets ? kMaxRanks : 1); ++k) {
        if (kRanks == 0 && k >= reduction.ranks()) break;
        device::Memory::store<device::Order::weak>(places.targets[k] + tile.at(u), result);
      }
    }
  });
}

}  // namespace detail

/// Moves and reduces elements with all threads of a group, 16 bytes at a time. kRanks is 2, 4 or 8,
/// or 0 for a number known at run time, at most 8.
template <class T, Family kFamily, int kRanks, class Group>
class GroupReduceOps {
 public:
  static constexpr bool kPulls = false;
  static constexpr bool kReadsAll = true;
  static constexpr bool kBroadcasts = false;
  ORIEL_DEVICE_FN static constexpr std::uint64_t element_bytes(const AllReduceArguments&) {
    return sizeof(T);
  }

  ORIEL_DEVICE_FN explicit GroupReduceOps(const AllReduceArguments& arguments)
      : arguments_(arguments), reduction_(arguments) {}

  /// Prepares the reduction. Call it after grid_dependency_wait() and before all other functions
  /// (see FamilyReduction::begin).
  ORIEL_DEVICE_FN void begin() { reduction_.begin(arguments_); }

  /// Stores `count` elements of the input, from `first` on, into a ring slot; scales them if the
  /// operation scales.
  ORIEL_DEVICE_FN void send(std::byte* slot, std::uint64_t first, std::uint64_t count) const {
    const std::byte* const from = arguments_.input + first * sizeof(T);
    if (!reduction_.scales()) return copy_bytes<Group>(slot, from, count * sizeof(T));
    copy_payloads<Group, T>(slot, from, count,
                            [this](const Value& value) { return reduction_.scale(value); });
  }

  /// Stores `count` elements of a ring slot into the output from `first` on.
  ORIEL_DEVICE_FN void copy_out(std::uint64_t first, const std::byte* slot,
                                std::uint64_t count) const {
    copy_bytes<Group>(arguments_.output + first * sizeof(T), slot, count * sizeof(T));
  }

  /// Reduces `count` elements of all ranks' sources. `targets` is the number of targets to store
  /// to: those of all ranks, or this rank's alone.
  template <class Source, class Target>
  ORIEL_DEVICE_FN void reduce(const Source& source, const Target& target, int targets,
                              std::uint64_t count) const {
    // Ring slots are aligned. Buffers that share an offset have the same alignment on all ranks.
    const std::uint32_t shift = reinterpret_cast<std::uintptr_t>(source(arguments_.rank)) % 16;
    const bool is_aligned = reinterpret_cast<std::uintptr_t>(target(arguments_.rank)) % 16 == 0;
    std::uint64_t whole = 0;
    if (is_aligned && Loop::is_for(reduction_, ranks())) {
      if (shift == 0) {
        whole = count / Buffer::kElements;
        reduce_packs(source, target, targets, whole);
      } else if (targets == 1 && ranks() > 1 && !reduction_.scales()) {
        whole = reduce_shifted(source, target, shift, count);
      }
    }
    reduce_rest(source, target, targets, whole, count);
  }

 private:
  using Buffer = UserBuffer<T, 16>;
  using Value = typename Buffer::Value;
  using Loop = detail::LoopReduction<T, kFamily, kRanks>;

  ORIEL_DEVICE_FN int ranks() const { return kRanks > 0 ? kRanks : arguments_.ranks; }

  /// Reduces the aligned payloads 0 to `whole` - 1 of a call for which Loop::is_for() holds.
  template <class Source, class Target>
  ORIEL_DEVICE_FN void reduce_packs(const Source& source, const Target& target, int targets_used,
                                    std::uint64_t whole) const {
    typename Loop::Places places;
    set_places(places, source, target);
    const Loop loop(reduction_, ranks());
    using Form = detail::ReduceForm;
    if (reduction_.scales()) {
      if (targets_used == 1) {
        return detail::reduce_tiles<Group, Form::one_target_scaled>(loop, places, whole);
      }
      return detail::reduce_tiles<Group, Form::all_targets_scaled>(loop, places, whole);
    }
    if (targets_used == 1) {
      return detail::reduce_tiles<Group, Form::one_target>(loop, places, whole);
    }
    detail::reduce_tiles<Group, Form::all_targets>(loop, places, whole);
  }

  /// Reduces into this rank's target, if its source begins `shift` bytes behind a multiple of 16.
  /// Blocks of an odd number of elements do. Returns the number of payloads reduced: those whose
  /// packs end inside the source, which may be the end of an allocation.
  template <class Source, class Target>
  ORIEL_DEVICE_FN std::uint64_t reduce_shifted(const Source& source, const Target& target,
                                               std::uint32_t shift, std::uint64_t count) const {
    const std::uint64_t packs = (count * sizeof(T) + shift) / 16;
    if (packs < 2) return 0;
    typename Loop::Places places;
    // Replaces the own source, which is loaded like the others but not used.
    const int me = arguments_.rank;
    const int other = me == 0 ? 1 : 0;
    set_places(
        places, [&](int rank) { return source(rank == me ? other : rank); }, target);
    places.own = reinterpret_cast<const device::Pack*>(source(me) - shift);
    places.shift = shift;
    detail::reduce_tiles<Group, detail::ReduceForm::one_target_shifted>(Loop(reduction_, ranks()),
                                                                        places, packs - 1);
    return packs - 1;
  }

  template <class Source, class Target>
  ORIEL_DEVICE_FN void set_places(typename Loop::Places& places, const Source& source,
                                  const Target& target) const {
    const int me = arguments_.rank;
    places.me = me;
    ORIEL_DEVICE_UNROLL
    for (int i = 0; i < Loop::kMaxRanks; ++i) {
      if (kRanks == 0 && i >= ranks()) break;
      places.sources[i] = reinterpret_cast<const device::Pack*>(source(i));
      // Orders targets from this rank to its right, so that not all ranks store to one at once.
      places.targets[i] =
          reinterpret_cast<device::Pack*>(target(me + i < ranks() ? me + i : me + i - ranks()));
    }
  }

  /// Reduces the rest, for any number of ranks, one payload at a time: unaligned or partial
  /// payloads, and calls for which Loop::is_for() is false.
  template <class Source, class Target>
  ORIEL_DEVICE_FN void reduce_rest(const Source& source, const Target& target, int targets,
                                   std::uint64_t first, std::uint64_t count) const {
    // Registers do not hold the accumulators of 16 elements for each level of the tree.
    constexpr int kBytes = sizeof(T) == 1 ? 8 : 16;
    using Rest = UserBuffer<T, kBytes>;
    const std::uint64_t payloads = device::divide_up(count, Rest::kElements);
    first *= 16 / kBytes;
    ORIEL_DEVICE_KEEP_LOOP
    for (std::uint64_t i = first + Group::rank(); i < payloads; i += Group::size()) {
      const auto result = fold_ranks<0, kBytes>(reduction_, ranks(), [&](int rank) {
        const typename Rest::Value value = Rest(source(rank), count).load(i);
        return rank == arguments_.rank ? reduction_.scale(value) : value;
      });
      ORIEL_DEVICE_KEEP_LOOP
      for (int rank = 0; rank < ranks(); ++rank) {
        if (targets == 1 && rank != arguments_.rank) continue;
        Rest(target(rank), count).store(i, result);
      }
    }
  }

  const AllReduceArguments& arguments_;
  FamilyReduction<T, kFamily> reduction_;
};

}  // namespace oriel::kernels
