// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Forwards to wqe.hpp, the present name of this header, for sources that include it by this path.
///
/// ```cpp
/// inline constexpr std::uint32_t kTwoWqebbs = 2 * oriel::device::queue::kWqebbBytes;
/// ```
#include "oriel/device/queue/wqe.hpp"
