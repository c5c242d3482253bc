// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "topo/choice/paths.hpp"

namespace oriel::topo {

/// What matters of a path, small enough to tell every rank.
struct PathFacts {
  PathKind kind = PathKind::network;
  std::uint8_t hops = 0;  ///< links on the way; 0: none, or not known
  /// See bandwidth_class(). Small differences of speed do not change it.
  std::uint8_t bandwidth_class = 0;
  bool atomics = false;  ///< native ones over it

  bool operator==(const PathFacts&) const = default;
};

/// The class of a bandwidth: class n holds the bandwidths of at least 2^(n-1) and less than 2^n
/// Gbit/s one way. 0: not known, or less than 1 Gbit/s.
constexpr std::uint8_t bandwidth_class(double gbps) {
  constexpr double kMost = 1u << 30;
  if (!(gbps >= 1)) return 0;
  return static_cast<std::uint8_t>(
      std::bit_width(static_cast<std::uint32_t>(gbps < kMost ? gbps : kMost)));
}
inline constexpr std::uint8_t kBandwidthClassMost = 31;

/// Such as "NVLink, 2 hops, from 2048 Gbit/s".
std::string text_of(const PathFacts& path);

}  // namespace oriel::topo
