// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace oriel::test {

/// Returns true if ORIEL_TEST_LONG is set: tests then do the full amount that the requirements
/// name, which takes minutes.
inline bool is_long_run() {
  return std::getenv("ORIEL_TEST_LONG") != nullptr;
}

}  // namespace oriel::test
