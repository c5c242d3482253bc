// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/window.hpp"

#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

/// Identifies the part of the grid to which a thread belongs. A CPU rank is one CTA of one thread.
struct GridPlace {
  std::uint32_t cta = 0;
  std::uint32_t ctas = 1;
};

/// Computes addresses in the ranks' slots, by arithmetic alone.
class Places {
 public:
  ORIEL_DEVICE_FN Places(const AllReduceArguments& arguments, std::uint32_t cta)
      : arguments_(arguments), cta_(cta) {}

  /// Returns the address of `offset` in `rank`'s slot.
  ORIEL_DEVICE_FN std::byte* slot(int rank, std::uint64_t offset) const {
    return peer(arguments_.flat_base + offset, rank);
  }
  ORIEL_DEVICE_FN std::byte* scratch(int rank, std::uint64_t offset) const {
    return peer(arguments_.scratch + offset, rank);
  }

  ORIEL_DEVICE_FN device::Doorbell& doorbell(int rank) const {
    return *reinterpret_cast<device::Doorbell*>(scratch(rank, arguments_.layout.doorbell));
  }

  ORIEL_DEVICE_FN CtaCounters* counters() const {
    return reinterpret_cast<CtaCounters*>(
        scratch(arguments_.rank, arguments_.layout.epochs + cta_ * sizeof(CtaCounters)));
  }

  /// Returns the flag that `source` raises at `owner`.
  ORIEL_DEVICE_FN std::uint32_t* flag(int owner, int source) const {
    const std::uint64_t index =
        cta_ * static_cast<std::uint64_t>(arguments_.ranks) + static_cast<std::uint64_t>(source);
    return reinterpret_cast<std::uint32_t*>(
        scratch(owner, arguments_.layout.flags + index * kSectorBytes));
  }

  ORIEL_DEVICE_FN std::byte* hello(int owner, std::uint32_t parity, int source) const {
    const std::uint64_t index =
        (cta_ * kParities + parity) * static_cast<std::uint64_t>(arguments_.ranks) +
        static_cast<std::uint64_t>(source);
    return scratch(owner, arguments_.layout.handshakes + index * kHelloBytes);
  }

  /// Returns the word at `owner` that holds the call signature of `source`. GPUs only. All CTAs
  /// share the word.
  ORIEL_DEVICE_FN std::uint64_t* signature(int owner, std::uint32_t parity, int source) const {
    const std::uint64_t index =
        parity * static_cast<std::uint64_t>(arguments_.ranks) + static_cast<std::uint64_t>(source);
    return reinterpret_cast<std::uint64_t*>(
        scratch(owner, arguments_.layout.signatures + index * kSectorBytes));
  }

  /// Returns the slot for `source`'s chunk in the input ring (or the output ring) of this CTA at
  /// `owner`. The rings have fixed halves. The reason: a call with another chunk size may begin
  /// while a slower rank still copies out of the previous call's ring. With whole rings, the input
  /// ring has both halves.
  ORIEL_DEVICE_FN std::byte* ring(int owner, Ring ring, std::uint32_t chunk, int source) const {
    const auto sources = static_cast<std::uint64_t>(arguments_.ranks - 1);
    const std::uint64_t index =
        (chunk % arguments_.stream.depth) * sources + slot_of(source, owner, arguments_.ranks);
    const std::uint64_t half = ring == Ring::input ? 0 : arguments_.layout.ring_bytes / 2;
    return scratch(owner, arguments_.layout.rings + cta_ * arguments_.layout.ring_bytes + half +
                              index * arguments_.stream.chunk_bytes);
  }

 private:
  /// Moves `address` from rank 0's slot to `rank`'s: one add to the high word, because slots are
  /// multiples of 4 GiB apart.
  ORIEL_DEVICE_FN std::byte* peer(std::byte* address, int rank) const {
    return device::advance_4g(address, arguments_.stride_4g * static_cast<std::uint32_t>(rank));
  }

  const AllReduceArguments& arguments_;
  std::uint64_t cta_;
};

}  // namespace oriel::kernels
