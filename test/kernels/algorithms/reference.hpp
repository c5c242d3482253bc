// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "oriel/device/reduce.hpp"
#include "oriel/device/scalar.hpp"
#include "oriel/types.hpp"

/// What the tests of reductions share: a call for every type and operation, inputs, and the scalar
/// fold that the vectorised loops must equal.
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

template <typename T>
inline constexpr bool kIsFloat = device::kIsSmallFloat<T> || std::is_floating_point_v<T>;

/// How inputs are chosen: any bits at all, NaN among them; moderate numbers; or mostly the values
/// at the edges: zeros of both signs, infinities, NaN, the largest, the smallest.
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

/// The definition: one element of the result.
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

}  // namespace oriel::test
