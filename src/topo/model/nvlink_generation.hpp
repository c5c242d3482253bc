// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "topo/model/machine.hpp"

namespace oriel::topo {

/// Maximum number of NVLinks of an architecture's GPUs, and the bandwidth of one in Gbit/s one way.
/// From NVIDIA's data sheets of V100, A100, A40, H100 and B200. Used if no source reports them.
struct NvlinkGeneration {
  int architecture = 0;
  int links = 0;
  double link_gbps = 0;
};

inline constexpr std::array<NvlinkGeneration, 6> kNvlinkGenerations = {
    {{70, 6, 200}, {80, 12, 200}, {86, 4, 112.5}, {90, 18, 200}, {100, 18, 400}, {103, 18, 400}}};

/// Returns the generation; zero links for an unknown architecture.
inline NvlinkGeneration nvlink_generation_of(int architecture) {
  const auto* const found =
      std::find_if(kNvlinkGenerations.begin(), kNvlinkGenerations.end(),
                   [&](const NvlinkGeneration& one) { return one.architecture == architecture; });
  return found == kNvlinkGenerations.end() ? NvlinkGeneration{} : *found;
}

/// Sets the link bandwidth of GPUs with links to switches if NVML has not reported it. NVML does
/// not report it in a virtual machine (driver 580.159).
inline void assume_link_speeds(std::vector<Gpu>& gpus) {
  for (Gpu& gpu : gpus) {
    if (gpu.switch_links == 0 || gpu.link_gbps > 0) continue;
    gpu.link_gbps = nvlink_generation_of(gpu.architecture).link_gbps;
  }
}

}  // namespace oriel::topo
