// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

#include "oriel/device/rounding.hpp"

/// Rounds unsigned numbers to multiples of a unit. A unit is greater than zero and need not be a
/// power of two. The caller of divide_up() or round_up() ensures that `value` + `unit` - 1 fits T.
namespace oriel {

/// Returns how many units hold `value`.
template <std::unsigned_integral T>
constexpr T divide_up(T value, std::type_identity_t<T> unit) {
  return static_cast<T>(device::divide_up(value, unit));
}

/// Returns the least multiple of `unit` that is at least `value`.
template <std::unsigned_integral T>
constexpr T round_up(T value, std::type_identity_t<T> unit) {
  return static_cast<T>(divide_up(value, unit) * unit);
}

/// Returns the greatest multiple of `unit` that is at most `value`.
template <std::unsigned_integral T>
constexpr T round_down(T value, std::type_identity_t<T> unit) {
  return static_cast<T>(value / unit * unit);
}

/// Returns whether `value` is a multiple of `unit`.
template <std::unsigned_integral T>
constexpr bool is_aligned(T value, std::type_identity_t<T> unit) {
  return value % unit == 0;
}

inline bool is_aligned(const void* address, std::uintptr_t unit) {
  return is_aligned(reinterpret_cast<std::uintptr_t>(address), unit);
}

}  // namespace oriel
