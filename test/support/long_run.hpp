// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace oriel::test {

/// Whether ORIEL_TEST_LONG asks for as much as the demands name, which takes minutes.
inline bool is_long_run() {
  return std::getenv("ORIEL_TEST_LONG") != nullptr;
}

}  // namespace oriel::test
