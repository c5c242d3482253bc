// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>

#include "support/ranks.hpp"

namespace oriel::test {

/// Runs `body` with ranks as threads of one process, and as processes. Leaves out processes under
/// the thread sanitizer.
inline void in_all_modes(int size, const Body& body) {
  for (const LaunchMode launch_mode : kLaunchModes) {
    if (launch_mode == LaunchMode::group) continue;
    INFO(name_of(launch_mode) << " x " << size);
    check_all_ok(run_ranks(launch_mode, size, body));
  }
}

}  // namespace oriel::test
