// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/reduce.hpp"

#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "kernels/algorithms/reference.hpp"
#include "support/seed.hpp"

namespace {

using namespace oriel;
using namespace oriel::test;
using device::bf16;
using device::e4m3;
using device::e5m2;
using device::f16;

std::string join(const std::string& a, const std::string& b) {
  return "(" + a + "+" + b + ")";
}

/// Returns the tree by its definition: the left subtree holds the largest power of two below n.
std::string expected_tree(int first, int n) {
  if (n == 1) return std::to_string(first);
  int left = 1;
  while (2 * left < n) left *= 2;
  return join(expected_tree(first, left), expected_tree(first + left, n - left));
}

std::string runtime_tree(int n) {
  return device::fold_tree(
      n, [](int k) { return std::to_string(k); }, join);
}

template <typename T>
T reduce_as(ReduceOp op, const std::vector<T>& inputs, const std::vector<T>& scalars) {
  T result{};
  with_op(op, [&]<ReduceOp of>() {
    result = reduce_reference<T, of>(inputs, scalars, static_cast<int>(inputs.size()));
  });
  return result;
}

template <typename T>
T reduce_as(ReduceOp op, const std::vector<T>& inputs) {
  return reduce_as<T>(op, inputs, inputs);
}

template <typename T>
T from_double(double x) {
  if constexpr (device::kIsSmallFloat<T>) {
    return T(static_cast<float>(x));
  } else {
    return static_cast<T>(x);
  }
}

constexpr std::size_t kTreeHeight = 6;  // height for at most 64 inputs
constexpr ReduceOp kAllOps[] = {ReduceOp::sum, ReduceOp::prod, ReduceOp::max,
                                ReduceOp::min, ReduceOp::avg,  ReduceOp::premul_sum};

template <typename T>
std::uint64_t bits_of(T x) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &x, sizeof(x));
  return bits;
}

template <typename T>
constexpr std::uint64_t kCanonicalNan = (~std::uint64_t{0} >> (64 - 8 * sizeof(T))) >> 1;

}  // namespace

TEST_CASE("inputs are combined along the fixed tree", "[req:1.29][reduce]") {
  REQUIRE(runtime_tree(3) == "((0+1)+2)");
  REQUIRE(runtime_tree(4) == "((0+1)+(2+3))");
  REQUIRE(runtime_tree(7) == "(((0+1)+(2+3))+((4+5)+6))");
  for (int n = 1; n <= 64; ++n) REQUIRE(runtime_tree(n) == expected_tree(0, n));
  const auto leaf = [](int k) { return std::to_string(k); };
  REQUIRE(device::fold_tree_fixed<2>(leaf, join) == expected_tree(0, 2));
  REQUIRE(device::fold_tree_fixed<4>(leaf, join) == expected_tree(0, 4));
  REQUIRE(device::fold_tree_fixed<7>(leaf, join) == expected_tree(0, 7));
  REQUIRE(device::fold_tree<8>(8, leaf, join) == expected_tree(0, 8));
}

TEMPLATE_TEST_CASE("floats reduce within their error bounds", "[req:1.26][reduce]", f16, bf16, e4m3,
                   e5m2, float, double) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t n = 1 + rng() % 64;
    std::vector<TestType> inputs, scalars, factors;
    for (std::size_t k = 0; k < n; ++k) {
      inputs.push_back(random_element<TestType>(rng, Inputs::moderate));
      scalars.push_back(random_element<TestType>(rng, Inputs::moderate));
      // Keeps factors near one, so that no product leaves the range.
      factors.push_back(from_double<TestType>(rng() % 2 != 0 ? 1.125 : 0.875));
    }
    for (const ReduceOp op : kAllOps) {
      const auto& x = op == ReduceOp::prod ? factors : inputs;
      const TestType result = reduce_as<TestType>(op, x, scalars);
      const std::string wrong = compare_float<TestType>(op, x, scalars, result, kTreeHeight);
      if (!wrong.empty()) FAIL(name_of(op) << " of " << n << ": " << wrong);
    }
  }
}

TEMPLATE_TEST_CASE("integers wrap and averages truncate", "[req:1.26][reduce]", std::int8_t,
                   std::uint8_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 rng(seed);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t n = 1 + rng() % 64;
    const Inputs kind = static_cast<Inputs>(rng() % 3);
    std::vector<TestType> inputs, scalars;
    for (std::size_t k = 0; k < n; ++k) {
      inputs.push_back(random_element<TestType>(rng, kind));
      scalars.push_back(random_element<TestType>(rng, kind));
    }
    for (const ReduceOp op : kAllOps) {
      const TestType result = reduce_as<TestType>(op, inputs, scalars);
      const std::string wrong = compare_integer<TestType>(op, inputs, scalars, result);
      if (!wrong.empty()) FAIL(name_of(op) << " of " << n << ": " << wrong);
    }
  }
}

TEST_CASE("an integer average truncates toward zero", "[req:1.23][reduce]") {
  REQUIRE(reduce_as<std::int8_t>(ReduceOp::avg, {-3, -4}) == -3);
  REQUIRE(reduce_as<std::int8_t>(ReduceOp::avg, {3, 4}) == 3);
  REQUIRE(reduce_as<std::int8_t>(ReduceOp::avg, {127, 127}) == -1);    // -2 / 2
  REQUIRE(reduce_as<std::uint8_t>(ReduceOp::avg, {255, 255}) == 127);  // 254 / 2
  // More ranks than an i8 can count.
  REQUIRE(device::Reduction<std::int8_t, ReduceOp::avg>{300}.finish(-100) == 0);
}

TEMPLATE_TEST_CASE("NaN propagates and is canonical", "[req:1.23][reduce]", f16, bf16, e4m3, e5m2,
                   float, double) {
  const TestType one = from_double<TestType>(1);
  // A negative NaN: it has all bits set, and differs from the canonical NaN in the sign.
  TestType nan{};
  const std::uint64_t bits = ~std::uint64_t{0};
  std::memcpy(&nan, &bits, sizeof(nan));
  for (const ReduceOp op : kAllOps) {
    INFO(name_of(op));
    for (const auto& inputs : {std::vector<TestType>{nan, one}, std::vector<TestType>{one, nan},
                               std::vector<TestType>{nan, nan, one}, std::vector<TestType>{nan}}) {
      REQUIRE(bits_of(reduce_as<TestType>(op, inputs)) == kCanonicalNan<TestType>);
    }
  }
}

TEMPLATE_TEST_CASE("minus zero is below plus zero", "[req:1.23][reduce]", f16, bf16, e4m3, e5m2,
                   float, double) {
  const TestType plus = from_double<TestType>(0.0);
  const TestType minus = from_double<TestType>(-0.0);
  REQUIRE(bits_of(minus) != bits_of(plus));
  REQUIRE(bits_of(reduce_as<TestType>(ReduceOp::min, {plus, minus})) == bits_of(minus));
  REQUIRE(bits_of(reduce_as<TestType>(ReduceOp::min, {minus, plus})) == bits_of(minus));
  REQUIRE(bits_of(reduce_as<TestType>(ReduceOp::max, {plus, minus})) == bits_of(plus));
  REQUIRE(bits_of(reduce_as<TestType>(ReduceOp::max, {minus, plus})) == bits_of(plus));
  REQUIRE(bits_of(reduce_as<TestType>(ReduceOp::sum, {minus, minus})) == bits_of(minus));
}

TEST_CASE("overflow goes to infinity or saturates, infinities that cancel to NaN",
          "[req:1.23][reduce]") {
  REQUIRE(reduce_as<f16>(ReduceOp::sum, {f16(65504.f), f16(65504.f)}).bits == 0x7c00);
  REQUIRE(reduce_as<bf16>(ReduceOp::sum, {bf16(3e38f), bf16(3e38f)}).bits == 0x7f80);
  REQUIRE(reduce_as<e4m3>(ReduceOp::sum, {e4m3(448.f), e4m3(448.f)}).bits == 0x7e);
  REQUIRE(reduce_as<e5m2>(ReduceOp::sum, {e5m2(-57344.f), e5m2(-57344.f)}).bits == 0xfb);
  // Sums in f32, so that an overflow of f16 on the way does no harm.
  REQUIRE(reduce_as<f16>(ReduceOp::sum, {f16(65504.f), f16(65504.f), f16(-65504.f)}).bits ==
          0x7bff);
  REQUIRE(reduce_as<f16>(ReduceOp::avg, {f16(65504.f), f16(65504.f)}).bits == 0x7bff);
  const float inf = std::numeric_limits<float>::infinity();
  REQUIRE(bits_of(reduce_as<float>(ReduceOp::sum, {inf, -inf})) == 0x7fffffffu);
  REQUIRE(bits_of(reduce_as<float>(ReduceOp::prod, {inf, 0.f})) == 0x7fffffffu);
}

TEMPLATE_TEST_CASE("scaling by the sender gives the bits of scaling by the receiver",
                   "[req:1.26][reduce]", std::int8_t, std::uint64_t, f16, bf16, e4m3, e5m2, float,
                   double) {
  const std::uint64_t seed = test_seed();
  std::mt19937_64 rng(seed);
  using R = device::Reduction<TestType, ReduceOp::premul_sum>;
  for (int round = 0; round < 2000; ++round) {
    std::vector<TestType> inputs, scalars, scaled;
    for (std::size_t k = 0; k < 1 + rng() % 9; ++k) {
      inputs.push_back(random_element<TestType>(rng, static_cast<Inputs>(round % 3)));
      scalars.push_back(random_element<TestType>(rng, static_cast<Inputs>(round % 3)));
      scaled.push_back(R::scale(inputs.back(), scalars.back()));
    }
    const auto received = bits_of(reduce_as<TestType>(ReduceOp::premul_sum, inputs, scalars));
    if (received != bits_of(reduce_as<TestType>(ReduceOp::sum, scaled))) FAIL("round " << round);
  }
}
