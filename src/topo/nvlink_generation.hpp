// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>

namespace oriel::topo {

/// The NVLinks that GPUs of an architecture have at most, and what one carries in Gbit/s one way
/// (from NVIDIA's data sheets of V100, A100, A40, H100 and B200). For what nobody has told.
struct NvlinkGeneration {
  int architecture = 0;
  int links = 0;
  double link_gbps = 0;
};

inline constexpr std::array<NvlinkGeneration, 6> kNvlinkGenerations = {
    {{70, 6, 200}, {80, 12, 200}, {86, 4, 112.5}, {90, 18, 200}, {100, 18, 400}, {103, 18, 400}}};

/// No links for an architecture that is not known.
inline NvlinkGeneration nvlink_generation_of(int architecture) {
  const auto* const found =
      std::find_if(kNvlinkGenerations.begin(), kNvlinkGenerations.end(),
                   [&](const NvlinkGeneration& one) { return one.architecture == architecture; });
  return found == kNvlinkGenerations.end() ? NvlinkGeneration{} : *found;
}

}  // namespace oriel::topo
