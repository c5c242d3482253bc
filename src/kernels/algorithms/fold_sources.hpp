// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/config.hpp"

namespace oriel::kernels {

/// Where the inputs or sums of one fold lie: at equal distances, but for this rank's own.
struct FoldSources {
  const std::byte* first = nullptr;  ///< of source 0, even if that is the own one
  std::uint64_t stride = 0;          ///< bytes from one to the next
  int count = 1;
  int own = -1;  ///< which is this rank's; -1 if none is
  const std::byte* own_source = nullptr;

  [[nodiscard]] ORIEL_DEVICE_FN const std::byte* operator[](int i) const {
    return i == own ? own_source : first + static_cast<std::uint64_t>(i) * stride;
  }
};

}  // namespace oriel::kernels
