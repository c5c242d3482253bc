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

}  // namespace

void fill_elements(DataType type, Inputs inputs, std::uint64_t seed, std::byte* out,
                   std::size_t count) {
  with_type(type, [&]<typename T>() {
    std::mt19937_64 rng(seed);
    // Cycles through few random elements, because drawing is slow and position matters more.
    std::vector<T> pool(std::clamp<std::size_t>(count, 1, 997));
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
  with_type(type, [&]<typename T>() {
    with_op(op, [&]<ReduceOp of>() { reduce_typed<T, of>(arrays, scalars, count, out); });
  });
}

std::string compare_with_exact(DataType type, ReduceOp op,
                               const std::vector<const std::byte*>& arrays,
                               const std::vector<std::uint64_t>& scalars, std::size_t index,
                               const std::byte* result) {
  std::string wrong;
  with_type(type, [&]<typename T>() {
    std::vector<T> x, factors;
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      x.push_back(element_at<T>(arrays[k], index));
      factors.push_back(scalar_of<T>(scalars[k]));
    }
    const T got = element_at<T>(result, index);
    if constexpr (kIsFloat<T>) {
      wrong = compare_float<T>(op, x, factors, got, x.size());
    } else {
      wrong = compare_integer<T>(op, x, factors, got);
    }
  });
  return wrong;
}

}  // namespace oriel::test
