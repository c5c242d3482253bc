// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __cplusplus
#include <chrono>
#include <cstdlib>

namespace oriel::test {
/// Returns true if ORIEL_TEST_PLANTED names this defect.
inline bool is_planted(int number) {
  static const char* const named = std::getenv("ORIEL_TEST_PLANTED");
  return named != nullptr && std::atoi(named) == number;
}
}  // namespace oriel::test
#define PLANTED_(number) (::oriel::test::is_planted(number))
#endif
