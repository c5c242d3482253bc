// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace oriel::kernels {

/// The ways to all-reduce; each has its file under algorithms/.
enum class Algorithm : std::uint8_t { one_shot = 0, two_shot = 1, stream = 2 };
inline constexpr int kAlgorithmCount = 3;

constexpr const char* name_of(Algorithm algorithm) {
  constexpr const char* kNames[] = {"one_shot", "two_shot", "stream"};
  return static_cast<int>(algorithm) < kAlgorithmCount ? kNames[static_cast<int>(algorithm)]
                                                       : "unknown algorithm";
}

}  // namespace oriel::kernels
