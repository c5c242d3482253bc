// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/config.hpp"

namespace oriel::kernels {

/// Locates the inputs or sums of one fold: equally spaced, except for this rank's own source.
struct FoldSources {
  const std::byte* first = nullptr;  ///< slot of source 0, even if source 0 is the own one
  std::uint64_t stride = 0;          ///< bytes between neighbouring sources
  int count = 1;
  int own = -1;  ///< index of this rank's own source; -1: none
  const std::byte* own_source = nullptr;

  [[nodiscard]] ORIEL_DEVICE_FN const std::byte* operator[](int i) const {
    return i == own ? own_source : first + static_cast<std::uint64_t>(i) * stride;
  }
};

}  // namespace oriel::kernels
