// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/device/config.hpp"

/// Rounding of integers to multiples of a unit. A unit is greater than zero and need not be a power
/// of two. The caller ensures that `value` is not negative and that `value` + `unit` fits the
/// result.
///
/// Both functions compute in the common type of their arguments, as an expression would. Two
/// operands of 32 bits are divided with 32 bits, which is faster on a GPU than with 64. All
/// functions only compute: any thread may call them, they do not block and access no memory.
///
/// Example: the bytes that a kernel needs for `count` numbers in cache lines of their own.
/// ```cpp
/// ORIEL_DEVICE_FN unsigned bytes_of_lines(unsigned count) {
///   constexpr unsigned kPerLine = 32;
///   const unsigned lines = oriel::device::divide_up(count, kPerLine);
///   return oriel::device::round_up(lines * kPerLine * 4u, 128u);
/// }
/// ```
/// @file
namespace oriel::device {

/// Returns how many units hold `value`.
template <class Value, class Unit>
ORIEL_DEVICE_FN constexpr auto divide_up(Value value, Unit unit) {
  using Common = decltype(value + unit);
  const auto units = static_cast<Common>(unit);  // an int among unsigned operands is no mistake
  return (static_cast<Common>(value) + units - 1) / units;
}

/// Returns the least multiple of `unit` that is at least `value`.
template <class Value, class Unit>
ORIEL_DEVICE_FN constexpr auto round_up(Value value, Unit unit) {
  return divide_up(value, unit) * static_cast<decltype(value + unit)>(unit);
}

}  // namespace oriel::device
