// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/rounding.hpp"

#include <concepts>
#include <cstdint>

#include <catch2/catch.hpp>

using oriel::device::divide_up;
using oriel::device::round_up;

namespace {

template <class T>
bool counts_as_a_loop_does(T most) {
  for (T unit = 1; unit <= 9; ++unit) {
    T units = 0;
    for (T value = 0; value <= most; ++value) {
      if (value > static_cast<T>(units * unit)) ++units;
      if (divide_up(value, unit) != units || round_up(value, unit) != units * unit) return false;
    }
  }
  return true;
}

}  // namespace

TEST_CASE("rounding up counts as a loop does, and keeps 32 bits where both operands have them",
          "[req:4.3]") {
  CHECK(counts_as_a_loop_does<std::uint64_t>(40));
  CHECK(counts_as_a_loop_does<std::uint32_t>(40));
  CHECK(counts_as_a_loop_does<std::int32_t>(40));
  const std::uint32_t narrow = 5;
  const std::uint64_t wide = 5;
  static_assert(std::same_as<decltype(divide_up(narrow, narrow)), std::uint32_t>);
  static_assert(std::same_as<decltype(round_up(narrow, wide)), std::uint64_t>);
  static_assert(std::same_as<decltype(divide_up(5, 2)), int>);
  CHECK(divide_up(wide, narrow) == 1);
}
