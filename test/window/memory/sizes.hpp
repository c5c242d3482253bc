// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace oriel::window {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;

}  // namespace oriel::window
