// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gpu_arithmetic.hpp"

#include <cstring>
#include <iostream>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/algorithms/reference.hpp"
#include "support/cuda/needs_gpu.hpp"
#include "support/seed.hpp"

namespace {

using namespace oriel;
using namespace oriel::test;

const NeedsGpu needs_gpu;

std::mt19937_64 seeded() {
  const std::uint64_t seed = test_seed();
  return std::mt19937_64(seed);
}

template <typename F>
void for_each_small_float(const F& f) {
  f.template operator()<DataType::f16>();
  f.template operator()<DataType::bf16>();
  f.template operator()<DataType::e4m3>();
  f.template operator()<DataType::e5m2>();
}

}  // namespace

TEST_CASE("the GPU narrows like the CPU", "[req:1.23]") {
  std::mt19937_64 rng = seeded();
  constexpr std::size_t kCount = 1 << 22;
  std::vector<float> floats(kCount);
  for_each_small_float([&]<DataType type>() {
    using T = device::ElementOf<type>;
    for (std::size_t i = 0; i < kCount; ++i) {
      // Takes a third each: random bits, values of the type, and midpoints between values. Values
      // and midpoints may be off by one bit of f32.
      auto bits = static_cast<std::uint32_t>(rng());
      if (i % 3 != 0) {
        const float value = static_cast<float>(random_bits<T>(rng));
        std::memcpy(&bits, &value, sizeof(bits));
        constexpr int kHalf = type == DataType::f16    ? 12
                              : type == DataType::bf16 ? 15
                              : type == DataType::e4m3 ? 19
                                                       : 20;
        if (i % 3 == 1) bits += 1u << kHalf;
        bits += static_cast<std::uint32_t>(rng() % 3) - 1;
      }
      std::memcpy(&floats[i], &bits, sizeof(bits));
    }
    std::vector<T> single(kCount), paired(kCount);
    REQUIRE(gpu_narrow(type, floats.data(), kCount, single.data(), paired.data()) == 0);
    for (std::size_t i = 0; i < kCount; ++i) {
      const T expected(floats[i]);
      if (single[i].bits != expected.bits || paired[i].bits != expected.bits) {
        INFO(name_of(type) << " of " << floats[i]);
        CHECK(single[i].bits == expected.bits);
        REQUIRE(paired[i].bits == expected.bits);
      }
    }
  });
}

TEST_CASE("the GPU widens like the CPU", "[req:1.23]") {
  for_each_small_float([]<DataType type>() {
    using T = device::ElementOf<type>;
    const std::size_t count = std::size_t{1} << (8 * sizeof(T));
    std::vector<T> values(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = T::from_bits(static_cast<decltype(T::bits)>(i));
    }
    std::vector<float> single(count), paired(count);
    REQUIRE(gpu_widen(type, values.data(), count, single.data(), paired.data()) == 0);
    for (std::size_t i = 0; i < count; ++i) {
      const float expected = static_cast<float>(values[i]);
      for (const float got : {single[i], paired[i]}) {
        // Widening need not keep the bits of a NaN: the reduction makes NaN canonical at its end.
        const bool equal =
            std::isnan(expected) ? std::isnan(got) : std::memcmp(&got, &expected, sizeof(got)) == 0;
        if (!equal) FAIL(name_of(type) << " bits " << i << " became " << got);
      }
    }
  });
}

TEST_CASE("the GPU reduces to the bits of the CPU", "[req:1.26]") {
  std::mt19937_64 rng = seeded();
  for_each_type_and_op([&]<DataType type, ReduceOp op>() {
    using T = device::ElementOf<type>;
    constexpr std::size_t kCount = 3000;
    for (int n = 1; n <= 8; ++n) {
      const int n_ranks = n % 2 == 0 ? n : 1 + static_cast<int>(rng() % 1000);
      const std::size_t ranks = static_cast<std::size_t>(n);
      std::vector<T> inputs(ranks * kCount), scalars(ranks), row(ranks), results(kCount);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        inputs[i] = random_element<T>(rng, static_cast<Inputs>(i % 3));
      }
      for (T& x : scalars) x = random_element<T>(rng, Inputs::moderate);
      REQUIRE(gpu_reduce(type, op, inputs.data(), scalars.data(), n, n_ranks, kCount,
                         results.data()) == 0);
      for (std::size_t i = 0; i < kCount; ++i) {
        for (std::size_t k = 0; k < ranks; ++k) row[k] = inputs[k * kCount + i];
        const T expected = reduce_reference<T, op>(row, scalars, n_ranks);
        if (std::memcmp(&expected, &results[i], sizeof(T)) != 0) {
          FAIL(name_of(type) << " " << name_of(op) << " of " << n << ", element " << i);
        }
      }
    }
  });
}
