// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace oriel::kernels {

enum class Backend : std::uint8_t { host = 0, cuda = 1 };

/// Lists the all-reduce algorithms; each has a file under algorithms/. `eager` is for CPU ranks
/// only. The others are one source for GPUs and CPUs.
enum class Algorithm : std::uint8_t { one_shot = 0, two_shot = 1, stream = 2, eager = 3 };
inline constexpr int kAlgorithmCount = 4;
inline constexpr int kGpuAlgorithmCount = 3;  ///< the algorithms before `eager`

constexpr const char* name_of(Algorithm algorithm) {
  constexpr const char* kNames[] = {"one_shot", "two_shot", "stream", "eager"};
  return static_cast<int>(algorithm) < kAlgorithmCount ? kNames[static_cast<int>(algorithm)]
                                                       : "unknown algorithm";
}

}  // namespace oriel::kernels
