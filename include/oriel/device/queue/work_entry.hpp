// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// @file
/// Includes wqe.hpp: a second path to the same definitions.
///
/// ```cpp
/// inline constexpr std::uint32_t kTwoWqebbs = 2 * oriel::device::queue::kWqebbBytes;
/// ```
#include "oriel/device/queue/wqe.hpp"
