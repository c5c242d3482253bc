// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>

#include "support/ranks.hpp"

namespace oriel::test {

/// Runs `body` with ranks as threads of one process, and as processes.
inline void on_all_casts(int size, const Body& body) {
  for (const Cast cast : kCasts) {
    if (cast == Cast::group) continue;
    INFO(name_of(cast) << " x " << size);
    check_all_ok(play(cast, size, body));
  }
}

}  // namespace oriel::test
