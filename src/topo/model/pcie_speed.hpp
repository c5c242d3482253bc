// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

namespace oriel::topo {

/// A generation of PCI Express: gigatransfers per second of a lane, and the resulting Gbit/s of
/// data one way. The encoding (8b/10b in the first two generations, then 128b/130b) is subtracted.
/// Source: PCI Express base specification.
struct PcieGeneration {
  double transfers = 0;
  double gbps = 0;
};

inline constexpr std::array<PcieGeneration, 7> kPcieGenerations = {
    {{0, 0}, {2.5, 2}, {5, 4}, {8, 7.877}, {16, 15.754}, {32, 31.508}, {64, 63.015}}};

/// Returns the Gbit/s of a link, one way; 0 for an unknown generation.
inline double pcie_gbps(std::size_t generation, unsigned lanes) {
  return generation < kPcieGenerations.size() ? kPcieGenerations[generation].gbps * lanes : 0;
}

/// Returns the generation with this transfer rate; 0 if there is none.
inline std::size_t pcie_generation_of(double transfers) {
  for (std::size_t i = 1; i < kPcieGenerations.size(); ++i) {
    if (kPcieGenerations[i].transfers == transfers) return i;
  }
  return 0;
}

}  // namespace oriel::topo
