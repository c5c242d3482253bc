// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "oriel/device/reduce.hpp"
#include "oriel/device/scalar.hpp"
#include "oriel/types.hpp"

/// Helpers for tests of reductions: loops over all types and operations, random inputs, and the
/// scalar fold that the vectorised loops must equal.
namespace oriel::test {

/// Calls f.template operator()<DataType, ReduceOp>() for every pair.
template <int kPair = 0, typename F>
void for_each_type_and_op(const F& f) {
  if constexpr (kPair < kDataTypeCount * kReduceOpCount) {
    f.template operator()<static_cast<DataType>(kPair / kReduceOpCount),
                          static_cast<ReduceOp>(kPair % kReduceOpCount)>();
    for_each_type_and_op<kPair + 1>(f);
  }
}

/// Calls f.template operator()<T>(), where T is the element type of `type`.
template <typename F>
void with_type(DataType type, const F& f) {
  const auto call = [&]<int... k>(std::integer_sequence<int, k...>) {
    ((static_cast<int>(type) == k
          ? f.template operator()<device::ElementOf<static_cast<DataType>(k)>>()
          : void()),
     ...);
  };
  call(std::make_integer_sequence<int, kDataTypeCount>());
}
/// Calls f.template operator()<op>() with `op` as a template argument.
template <typename F>
void with_op(ReduceOp op, const F& f) {
  const auto call = [&]<int... k>(std::integer_sequence<int, k...>) {
    ((static_cast<int>(op) == k ? f.template operator()<static_cast<ReduceOp>(k)>() : void()), ...);
  };
  call(std::make_integer_sequence<int, kReduceOpCount>());
}

template <typename T>
inline constexpr bool kIsFloat = device::kIsSmallFloat<T> || std::is_floating_point_v<T>;

/// Distribution of random inputs. any_bits: random bit patterns, NaN included. moderate: floats
/// from -2 to 2, or small integers. edges: three quarters are edge values, such as zeros of both
/// signs, infinities, NaN and the limits of the types.
enum class Inputs { any_bits, moderate, edges };

template <typename T>
T random_bits(std::mt19937_64& rng) {
  const std::uint64_t bits = rng();
  T x;
  std::memcpy(&x, &bits, sizeof(T));
  return x;
}

template <typename T>
T edge_value(std::mt19937_64& rng) {
  if constexpr (kIsFloat<T>) {
    const double inf = std::numeric_limits<double>::infinity();
    const double choices[] = {0.0, -0.0, inf, -inf,   std::nan(""), 1.0,   -1.0,
                              448, -448, 1e4, 57344., 65504,        1e-45, -6e-8};
    const double x = choices[rng() % std::size(choices)];
    if constexpr (device::kIsSmallFloat<T>) {
      return T(static_cast<float>(x));
    } else {
      return static_cast<T>(x);
    }
  } else {
    const T choices[] = {0, 1, static_cast<T>(-1), std::numeric_limits<T>::max(),
                         std::numeric_limits<T>::min()};
    return choices[rng() % std::size(choices)];
  }
}

template <typename T>
T random_element(std::mt19937_64& rng, Inputs inputs) {
  if (inputs == Inputs::any_bits) return random_bits<T>(rng);
  if (inputs == Inputs::edges && rng() % 4 != 0) return edge_value<T>(rng);
  if constexpr (kIsFloat<T>) {
    const double x = std::uniform_real_distribution<double>(-2, 2)(rng);
    if constexpr (device::kIsSmallFloat<T>) {
      return T(static_cast<float>(x));
    } else {
      return static_cast<T>(x);
    }
  } else {
    return static_cast<T>(static_cast<int>(rng() % 20) - (std::is_signed_v<T> ? 10 : 0));
  }
}

/// Returns one element of the result by the definition: the scalar fold along the tree.
template <typename T, ReduceOp op>
T reduce_reference(const std::vector<T>& inputs, const std::vector<T>& scalars, int n_ranks) {
  const device::Reduction<T, op> reduction{n_ranks};
  const auto leaf = [&](int k) {
    const auto i = static_cast<std::size_t>(k);
    return reduction.load(inputs[i], scalars[i]);
  };
  const auto combine = [&](auto a, auto b) { return reduction.combine(a, b); };
  return reduction.finish(device::fold_tree(static_cast<int>(inputs.size()), leaf, combine));
}

template <typename T>
long double exact_of(T x) {
  if constexpr (device::kIsSmallFloat<T>) {
    return static_cast<long double>(static_cast<float>(x));
  } else {
    return static_cast<long double>(x);
  }
}

/// Precision of a float type: half the distance from 1 to the next larger number (unit), and the
/// smallest positive number (tiny).
struct Precision {
  long double unit;
  long double tiny;
};
template <typename T>
Precision precision_of() {
  if constexpr (std::is_same_v<T, device::f16>) return {0x1p-11L, 0x1p-24L};
  if constexpr (std::is_same_v<T, device::bf16>) return {0x1p-8L, 0x1p-133L};
  if constexpr (std::is_same_v<T, device::e4m3>) return {0x1p-4L, 0x1p-9L};
  if constexpr (std::is_same_v<T, device::e5m2>) return {0x1p-3L, 0x1p-16L};
  if constexpr (std::is_same_v<T, float>) return {0x1p-24L, 0x1p-149L};
  return {0x1p-53L, 0x1p-1074L};
}

/// Returns an error text if `result` is farther from the exact result than rounding allows; empty
/// if it is near enough. `additions` is the most additions that an input takes part in.
template <typename T>
std::string compare_float(ReduceOp op, const std::vector<T>& x, const std::vector<T>& scalars,
                          T result, std::size_t additions) {
  const auto [unit, tiny] = precision_of<T>();
  const long double work = std::is_same_v<T, double> ? 0x1p-53L : 0x1p-24L;
  const auto ranks = static_cast<long double>(x.size());
  long double sum = 0, size = 0, product = 1, low = exact_of(x[0]), high = low;
  for (std::size_t k = 0; k < x.size(); ++k) {
    const long double factor = op == ReduceOp::premul_sum ? exact_of(scalars[k]) : 1;
    const long double value = exact_of(x[k]) * factor;
    sum += value;
    size += std::fabs(value);
    product *= exact_of(x[k]);
    low = std::min(low, exact_of(x[k]));
    high = std::max(high, exact_of(x[k]));
  }
  long double expected = sum;
  long double allowed = static_cast<long double>(additions) * work * size;
  if (op == ReduceOp::premul_sum) allowed += unit * size + ranks * tiny;
  if (op == ReduceOp::avg) {
    expected /= ranks;
    allowed = allowed / ranks + work * std::fabs(expected);
  }
  if (op == ReduceOp::prod) {
    expected = product;
    allowed = ranks * work * std::fabs(product) + 0x1p-126L;
  }
  if (op == ReduceOp::min || op == ReduceOp::max) {
    expected = op == ReduceOp::min ? low : high;
    allowed = 0;
  } else {
    if (std::fabs(expected) > 400) return "";  // the smallest format, e4m3, may saturate
    allowed += unit * (std::fabs(expected) + allowed) * 1.01L + tiny;
  }
  const long double got = exact_of(result);
  if (std::fabs(got - expected) <= allowed) return "";
  return fmt::format("{} instead of {} (within {})", static_cast<double>(got),
                     static_cast<double>(expected), static_cast<double>(allowed));
}

/// Returns an error text if `result` is wrong, else an empty one. Integers wrap, averages
/// truncate toward zero.
template <typename T>
std::string compare_integer(ReduceOp op, const std::vector<T>& x, const std::vector<T>& scalars,
                            T result) {
  std::uint64_t wrapped = op == ReduceOp::prod ? 1 : 0;
  for (std::size_t k = 0; k < x.size(); ++k) {
    const auto value = static_cast<std::uint64_t>(x[k]);
    if (op == ReduceOp::prod) {
      wrapped *= value;
    } else {
      wrapped +=
          op == ReduceOp::premul_sum ? value * static_cast<std::uint64_t>(scalars[k]) : value;
    }
  }
  T expected = static_cast<T>(wrapped);
  const auto ranks = static_cast<__int128>(x.size());
  if (op == ReduceOp::avg) expected = static_cast<T>(static_cast<__int128>(expected) / ranks);
  if (op == ReduceOp::min) expected = *std::min_element(x.begin(), x.end());
  if (op == ReduceOp::max) expected = *std::max_element(x.begin(), x.end());
  if (result == expected) return "";
  return fmt::format("{} instead of {}", static_cast<std::int64_t>(result),
                     static_cast<std::int64_t>(expected));
}

}  // namespace oriel::test
