// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/all_reduce_reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <type_traits>

#include <fmt/format.h>

namespace oriel::test {
namespace {

template <typename F>
void with_type(DataType type, const F& f) {
  switch (type) {
    case DataType::i8:
      return f(std::int8_t{});
    case DataType::u8:
      return f(std::uint8_t{});
    case DataType::i32:
      return f(std::int32_t{});
    case DataType::u32:
      return f(std::uint32_t{});
    case DataType::i64:
      return f(std::int64_t{});
    case DataType::u64:
      return f(std::uint64_t{});
    case DataType::f16:
      return f(device::f16{});
    case DataType::f32:
      return f(float{});
    case DataType::f64:
      return f(double{});
    case DataType::bf16:
      return f(device::bf16{});
    case DataType::e4m3:
      return f(device::e4m3{});
    case DataType::e5m2:
      return f(device::e5m2{});
  }
}

template <typename T>
T element_at(const std::byte* array, std::size_t index) {
  T value;
  std::memcpy(&value, array + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
T scalar_of(std::uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T>
long double exact_of(T x) {
  if constexpr (device::kIsSmallFloat<T>) {
    return static_cast<long double>(static_cast<float>(x));
  } else {
    return static_cast<long double>(x);
  }
}

template <typename T, ReduceOp op>
void reduce_typed(const std::vector<const std::byte*>& arrays,
                  const std::vector<std::uint64_t>& scalars, std::size_t count, std::byte* out) {
  const auto ranks = static_cast<int>(arrays.size());
  const device::Reduction<T, op> reduction{ranks};
  const auto combine = [&](auto a, auto b) { return reduction.combine(a, b); };
  for (std::size_t i = 0; i < count; ++i) {
    const auto leaf = [&](int rank) {
      const auto k = static_cast<std::size_t>(rank);
      return reduction.load(element_at<T>(arrays[k], i), scalar_of<T>(scalars[k]));
    };
    const T value = reduction.finish(device::fold_tree(ranks, leaf, combine));
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

/// Half the distance from 1 to its neighbour, and the smallest positive number.
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

template <typename T>
std::string compare_float(ReduceOp op, const std::vector<T>& x, const std::vector<T>& scalars,
                          T result) {
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
  long double allowed = ranks * work * size;
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
    if (std::fabs(expected) > 400) return "";  // may saturate the smallest formats
    allowed += unit * (std::fabs(expected) + allowed) * 1.01L + tiny;
  }
  const long double got = exact_of(result);
  if (std::fabs(got - expected) <= allowed) return "";
  return fmt::format("{} instead of {} (within {})", static_cast<double>(got),
                     static_cast<double>(expected), static_cast<double>(allowed));
}

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

}  // namespace

void fill_elements(DataType type, Inputs inputs, std::uint64_t seed, std::byte* out,
                   std::size_t count) {
  with_type(type, [&](auto sample) {
    using T = decltype(sample);
    std::mt19937_64 rng(seed);
    // Many elements share few draws: drawing is slow, and position matters more than variety.
    std::vector<T> pool(997);
    for (T& element : pool) element = random_element<T>(rng, inputs);
    std::size_t at = rng() % pool.size();
    for (std::size_t i = 0; i < count; ++i) {
      std::memcpy(out + i * sizeof(T), &pool[at], sizeof(T));
      if (++at == pool.size()) at = rng() % pool.size();
    }
  });
}

void reduce_arrays(DataType type, ReduceOp op, const std::vector<const std::byte*>& arrays,
                   const std::vector<std::uint64_t>& scalars, std::size_t count, std::byte* out) {
  with_type(type, [&](auto sample) {
    using T = decltype(sample);
    switch (op) {
      case ReduceOp::sum:
        return reduce_typed<T, ReduceOp::sum>(arrays, scalars, count, out);
      case ReduceOp::prod:
        return reduce_typed<T, ReduceOp::prod>(arrays, scalars, count, out);
      case ReduceOp::max:
        return reduce_typed<T, ReduceOp::max>(arrays, scalars, count, out);
      case ReduceOp::min:
        return reduce_typed<T, ReduceOp::min>(arrays, scalars, count, out);
      case ReduceOp::avg:
        return reduce_typed<T, ReduceOp::avg>(arrays, scalars, count, out);
      case ReduceOp::premul_sum:
        return reduce_typed<T, ReduceOp::premul_sum>(arrays, scalars, count, out);
    }
  });
}

std::string compare_with_exact(DataType type, ReduceOp op,
                               const std::vector<const std::byte*>& arrays,
                               const std::vector<std::uint64_t>& scalars, std::size_t index,
                               const std::byte* result) {
  std::string wrong;
  with_type(type, [&](auto sample) {
    using T = decltype(sample);
    std::vector<T> x, factors;
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      x.push_back(element_at<T>(arrays[k], index));
      factors.push_back(scalar_of<T>(scalars[k]));
    }
    const T got = element_at<T>(result, index);
    if constexpr (kIsFloat<T>) {
      wrong = compare_float<T>(op, x, factors, got);
    } else {
      wrong = compare_integer<T>(op, x, factors, got);
    }
  });
  return wrong;
}

}  // namespace oriel::test
