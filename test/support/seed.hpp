// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace oriel::test {

/// Returns ORIEL_TEST_SEED, or a new seed, and prints the seed. The same seed draws the same random
/// numbers.
inline std::uint64_t test_seed() {
  const char* const given = std::getenv("ORIEL_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  std::printf("ORIEL_TEST_SEED=%#llx\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);  // forked ranks must not inherit the buffered text
  return seed;
}

}  // namespace oriel::test
