// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <string>

#include "topo/choice/paths.hpp"

namespace oriel::topo {

/// Summary of a path, small enough to send to every rank.
struct PathFacts {
  PathKind kind = PathKind::network;
  std::uint8_t hops = 0;  ///< number of links; 0: none, or not known
  /// See bandwidth_class(); insensitive to small differences in speed.
  std::uint8_t bandwidth_class = 0;
  bool atomics = false;  ///< the path supports native atomics

  bool operator==(const PathFacts&) const = default;
};

/// Returns the class of a bandwidth: class n contains at least 2^(n-1) and less than 2^n Gbit/s one
/// way. 0: not known, or less than 1 Gbit/s.
constexpr std::uint8_t bandwidth_class(double gbps) {
  constexpr double kMost = 1u << 30;
  if (!(gbps >= 1)) return 0;
  return static_cast<std::uint8_t>(
      std::bit_width(static_cast<std::uint32_t>(gbps < kMost ? gbps : kMost)));
}
inline constexpr std::uint8_t kBandwidthClassMost = 31;
/// Returns the middle of a class other than 0, in Gbit/s.
constexpr double middle_gbps(std::uint8_t bandwidth_class) {
  return 1.5 * static_cast<double>(std::uint64_t{1} << (bandwidth_class - 1));
}

/// Returns text such as "NVLink, 2 hops, from 2048 Gbit/s".
std::string text_of(const PathFacts& path);

}  // namespace oriel::topo
