// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/algorithms/copy_bytes.hpp"
#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

namespace detail {

/// Sources and targets of copies that are made together.
template <int kCopies>
struct CopyPlaces {
  std::byte* to[kCopies];
  const std::byte* from[kCopies];  ///< all equal, if there is one source
};

/// Returns whether all targets are equal modulo 16.
template <int kCopies>
ORIEL_DEVICE_FN bool are_alike(const CopyPlaces<kCopies>& places) {
  std::uintptr_t differing = 0;
  ORIEL_DEVICE_UNROLL
  for (int k = 1; k < kCopies; ++k) {
    differing |= reinterpret_cast<std::uintptr_t>(places.to[k]) ^
                 reinterpret_cast<std::uintptr_t>(places.to[0]);
  }
  return differing % 16 == 0;
}

/// Makes `kCopies` copies of `bytes` bytes. Loads a common source only once if all addresses are
/// aligned, as ring slots and most buffers are. Does so too if all targets are equal modulo 16, as
/// registered ones are.
template <class Group, bool kOneSource, int kCopies>
ORIEL_DEVICE_FN void copy_together(const CopyPlaces<kCopies> places, std::uint64_t bytes) {
  constexpr int kSources = kOneSource ? 1 : kCopies;
  constexpr int kUnroll = kSources > 2 ? 4 : 8;
  std::uintptr_t addresses = 0;
  ORIEL_DEVICE_UNROLL
  for (int k = 0; k < kCopies; ++k) {
    addresses |= reinterpret_cast<std::uintptr_t>(places.to[k]) |
                 reinterpret_cast<std::uintptr_t>(places.from[k]);
  }
  if constexpr (kOneSource) {
    const bool is_aligned = addresses % 16 == 0;
    if (!is_aligned && are_alike(places)) {
      return copy_joined<Group>(places.to, places.from[0], bytes);
    }
  }
  const std::uint64_t packs = addresses % 16 == 0 ? bytes / 16 : 0;
  // Copies the rest first: values that it needs would take registers in the loop.
  ORIEL_DEVICE_UNROLL
  for (int k = 0; k < kCopies && 16 * packs < bytes; ++k) {
    copy_out_of_line<Group>(places.to[k] + 16 * packs, places.from[k] + 16 * packs,
                            bytes - 16 * packs);
  }
  for_each_tile<Group, kUnroll>(packs, [&](const auto& tile) {
    constexpr int kUnits = std::remove_cvref_t<decltype(tile)>::kUnits;
    device::Pack values[kSources][kUnits];
    ORIEL_DEVICE_UNROLL
    for (int k = 0; k < kSources; ++k) {
      const auto* const from = reinterpret_cast<const device::Pack*>(places.from[k]);
      ORIEL_DEVICE_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        values[k][u] = device::Memory::load_streaming(from + tile.at(u));
      }
    }
    ORIEL_DEVICE_UNROLL
    for (int k = 0; k < kCopies; ++k) {
      auto* const to = reinterpret_cast<device::Pack*>(places.to[k]);
      ORIEL_DEVICE_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        if (!tile.has(u)) continue;
        device::Memory::store<device::Order::weak>(to + tile.at(u), values[kOneSource ? 0 : k][u]);
      }
    }
  });
}

}  // namespace detail

/// Moves the elements of a collective that copies, with all threads of a group. Has begin(), send()
/// and copy_out() like GroupReduceOps, and pass_on() and distribute() in place of reduce(). Knows
/// only the size of an element.
template <class Group>
class GroupCopyOps {
 public:
  static constexpr bool kPulls = false;
  static constexpr bool kReadsAll = false;
  static constexpr bool kBroadcasts = true;
  ORIEL_DEVICE_FN static std::uint64_t element_bytes(const AllReduceArguments& arguments) {
    return size_of(arguments.type);
  }

  ORIEL_DEVICE_FN explicit GroupCopyOps(const AllReduceArguments& arguments)
      : arguments_(arguments), element_bytes_(element_bytes(arguments)) {}

  ORIEL_DEVICE_FN void begin() const {}

  /// Sends in a broadcast: stores `count` elements of the root's input, from `first` on, at
  /// `place`. Stores them into the root's own output too.
  ORIEL_DEVICE_FN void send(std::byte* place, std::uint64_t first, std::uint64_t count) const {
    const std::byte* const from = arguments_.input + first * element_bytes_;
    std::byte* const own = arguments_.output + first * element_bytes_;
    if (own == from) return copy_out_of_line<Group>(place, from, count * element_bytes_);
    const detail::CopyPlaces<2> places{{place, own}, {from, from}};
    detail::copy_together<Group, true>(places, count * element_bytes_);
  }
  /// Stores `count` elements of a ring slot into the output from `first` on.
  ORIEL_DEVICE_FN void copy_out(std::uint64_t first, const std::byte* slot,
                                std::uint64_t count) const {
    copy_out_of_line<Group>(arguments_.output + first * element_bytes_, slot,
                            count * element_bytes_);
  }
  /// Stores `count` elements at `from` at the targets of all ranks. Leaves out the root, if there
  /// is one, and this rank if its target is null.
  template <class Target>
  ORIEL_DEVICE_FN void pass_on(const Target& target, const std::byte* from,
                               std::uint64_t count) const {
    copy_all<true>(
        target, [from](int /*rank*/) { return from; }, count, root_distance());
  }
  /// Stores `count` elements of each rank's own source at the target of that rank. Leaves out this
  /// rank if its target is null. There is no root.
  template <class Target, class Source>
  ORIEL_DEVICE_FN void distribute(const Target& target, const Source& source,
                                  std::uint64_t count) const {
    copy_all<false>(target, source, count, 0);
  }

 private:
  static constexpr int kMostTogether = 4;  // more addresses would not fit into registers

  /// Returns the root's distance to the right of this rank; 0 if this rank is the root or there is
  /// none.
  ORIEL_DEVICE_FN int root_distance() const {
    if (arguments_.root < 0) return 0;
    const int distance = arguments_.root - arguments_.rank;
    return distance < 0 ? distance + arguments_.ranks : distance;
  }
  /// Returns the i-th rank to the right, not counting the root. Each rank has an order of its own,
  /// so that not all ranks store to one at once.
  ORIEL_DEVICE_FN int other(int i, int root_distance) const {
    const bool is_behind_root = root_distance > 0 && i + 1 >= root_distance;
    const int rank = arguments_.rank + i + (is_behind_root ? 2 : 1);
    return rank < arguments_.ranks ? rank : rank - arguments_.ranks;
  }

  template <bool kOneSource, class Target, class Source>
  ORIEL_DEVICE_FN void copy_all(const Target& target, const Source& source, std::uint64_t count,
                                int root) const {
    const int others = arguments_.ranks - (root > 0 ? 2 : 1);
    std::byte* const own = target(arguments_.rank);
    const int all = others + (own != nullptr ? 1 : 0);
    ORIEL_DEVICE_KEEP_LOOP
    for (int first = 0; first < all; first += kMostTogether) {
      detail::CopyPlaces<kMostTogether> places;
      ORIEL_DEVICE_UNROLL
      for (int k = 0; k < kMostTogether; ++k) {
        const bool is_other = first + k < others;
        places.to[k] = is_other ? target(other(first + k, root)) : own;
        places.from[k] = source(is_other ? other(first + k, root) : arguments_.rank);
      }
      copy_some<kOneSource>(places, all - first, count * element_bytes_);
    }
  }
  /// Makes the first `copies` copies of `places`, at most all.
  template <bool kOneSource>
  ORIEL_DEVICE_FN static void copy_some(const detail::CopyPlaces<kMostTogether>& places, int copies,
                                        std::uint64_t bytes) {
    if (copies >= kMostTogether) return detail::copy_together<Group, kOneSource>(places, bytes);
    if (copies == 3) return copy_first<kOneSource, 3>(places, bytes);
    if (copies == 2) return copy_first<kOneSource, 2>(places, bytes);
    copy_out_of_line<Group>(places.to[0], places.from[0], bytes);
  }
  template <bool kOneSource, int kCopies>
  ORIEL_DEVICE_FN static void copy_first(const detail::CopyPlaces<kMostTogether>& places,
                                         std::uint64_t bytes) {
    detail::CopyPlaces<kCopies> some;
    ORIEL_DEVICE_UNROLL
    for (int k = 0; k < kCopies; ++k) {
      some.to[k] = places.to[k];
      some.from[k] = places.from[k];
    }
    detail::copy_together<Group, kOneSource>(some, bytes);
  }

  const AllReduceArguments& arguments_;
  std::uint64_t element_bytes_;
};

}  // namespace oriel::kernels
