// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/device/scalar.hpp"

#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "support/seed.hpp"

#if __has_include(<cuda_fp16.h>) && __has_include(<cuda_bf16.h>) && __has_include(<cuda_fp8.h>)
#define HAVE_CUDA_TYPES 1
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#else
#define HAVE_CUDA_TYPES 0
#endif

namespace {

using oriel::device::bf16;
using oriel::device::e4m3;
using oriel::device::e5m2;
using oriel::device::f16;

std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

/// Parameters of a format, from which the tests compute the expected conversion in double.
template <typename T>
struct Format;
template <>
struct Format<f16> {
  static constexpr int kMantissa = 10, kBias = 15;
  static constexpr bool kHasInf = true, kSaturates = false;
  static constexpr unsigned kNan = 0x7fff, kMaxFinite = 0x7bff;
};
template <>
struct Format<bf16> {
  static constexpr int kMantissa = 7, kBias = 127;
  static constexpr bool kHasInf = true, kSaturates = false;
  static constexpr unsigned kNan = 0x7fff, kMaxFinite = 0x7f7f;
};
template <>
struct Format<e4m3> {
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr bool kHasInf = false, kSaturates = true;
  static constexpr unsigned kNan = 0x7f, kMaxFinite = 0x7e;
};
template <>
struct Format<e5m2> {
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr bool kHasInf = true, kSaturates = true;
  static constexpr unsigned kNan = 0x7f, kMaxFinite = 0x7b;
};

template <typename T>
constexpr unsigned kSignBit = 1u << (8 * sizeof(T) - 1);

/// Returns the value of a finite bit pattern without its sign.
template <typename T>
double value_of(unsigned magnitude) {
  using F = Format<T>;
  const int exponent = static_cast<int>(magnitude >> F::kMantissa);
  const unsigned mantissa = magnitude & ((1u << F::kMantissa) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - F::kBias - F::kMantissa);
  return std::ldexp(mantissa + (1u << F::kMantissa), exponent - F::kBias - F::kMantissa);
}

/// Rounds x by search and exact comparison to the nearer of its two neighbours, on a tie to the
/// even one.
template <typename T>
unsigned narrow_by_search(float x) {
  using F = Format<T>;
  if (std::isnan(x)) return F::kNan;
  const unsigned sign = std::signbit(x) ? kSignBit<T> : 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  const double max = value_of<T>(F::kMaxFinite);
  // In f16 and bf16 the pattern above the largest finite one is even, so a tie goes to infinity.
  // The 8-bit formats saturate.
  if (magnitude > max) {
    const double next = value_of<T>(F::kMaxFinite + 1);
    const bool overflows = magnitude >= (max + next) / 2;
    if (overflows && !F::kSaturates) return sign | (F::kMaxFinite + 1);
    return sign | F::kMaxFinite;
  }
  unsigned low = 0;
  unsigned high = F::kMaxFinite;
  while (high - low > 1) {
    const unsigned middle = (low + high) / 2;
    (value_of<T>(middle) <= magnitude ? low : high) = middle;
  }
  const double below = magnitude - value_of<T>(low);
  const double above = value_of<T>(high) - magnitude;
  if (below < above || (below == above && low % 2 == 0)) return sign | low;
  return sign | high;
}

#if HAVE_CUDA_TYPES
unsigned narrow_by_cuda(float x, f16) {
  return __half_raw(__float2half_rn(x)).x;
}
unsigned narrow_by_cuda(float x, bf16) {
  return __nv_bfloat16_raw(__float2bfloat16_rn(x)).x;
}
unsigned narrow_by_cuda(float x, e4m3) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}
unsigned narrow_by_cuda(float x, e5m2) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
}

float widen_by_cuda(f16 x) {
  __half_raw raw;
  raw.x = x.bits;
  return __half2float(__half(raw));
}
float widen_by_cuda(bf16 x) {
  __nv_bfloat16_raw raw;
  raw.x = x.bits;
  return __bfloat162float(__nv_bfloat16(raw));
}
float widen_by_cuda(e4m3 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}
float widen_by_cuda(e5m2 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E5M2)));
}
#endif

/// Returns the floats at which the result of narrowing can change. They are each value, each
/// midpoint, their neighbours in f32, and the edges of f32, with both signs.
template <typename T>
std::vector<float> critical_floats() {
  std::vector<float> floats;
  const auto add = [&](double magnitude) {
    const std::uint32_t bits = bits_of(static_cast<float>(magnitude));
    for (std::uint32_t near = bits - 2; near != bits + 3; ++near) {
      floats.push_back(float_of(near & 0x7fffffffu));
      floats.push_back(float_of(near | 0x80000000u));
    }
  };
  for (unsigned i = 0; i <= Format<T>::kMaxFinite; ++i) {
    add(value_of<T>(i));
    add((value_of<T>(i) + value_of<T>(i + 1)) / 2);
  }
  for (const std::uint32_t bits : {0u, 1u, 0x7fffffu, 0x800000u, 0x7f7fffffu, 0x7f800000u,
                                   0x7f800001u, 0x7fbfffffu, 0x7fc00000u, 0x7fffffffu}) {
    floats.push_back(float_of(bits));
    floats.push_back(float_of(bits | 0x80000000u));
  }
  return floats;
}

template <typename T>
void check_narrowing(float x) {
  const unsigned ours = T(x).bits;
  const unsigned expected = narrow_by_search<T>(x);
  if (ours != expected) {
    INFO("f32 bits " << std::hex << bits_of(x));
    REQUIRE(ours == expected);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("narrowing rounds to nearest even", "[req:1.23][scalar]", f16, bf16, e4m3,
                   e5m2) {
  for (const float x : critical_floats<TestType>()) check_narrowing<TestType>(x);
  const std::uint64_t seed = oriel::test::test_seed();
  std::mt19937 rng(seed);
  for (int i = 0; i < 200000; ++i)
    check_narrowing<TestType>(float_of(static_cast<std::uint32_t>(rng())));
}

TEMPLATE_TEST_CASE("widening is exact and narrows back", "[req:1.23][scalar]", f16, bf16, e4m3,
                   e5m2) {
  using F = Format<TestType>;
  for (unsigned bits = 0; bits < 2 * kSignBit<TestType>; ++bits) {
    const TestType x = TestType::from_bits(static_cast<decltype(TestType::bits)>(bits));
    const unsigned magnitude = bits & ~kSignBit<TestType>;
    const double wide = static_cast<float>(x);
    INFO("bits " << std::hex << bits);
    if (magnitude <= F::kMaxFinite) {
      const double value = value_of<TestType>(magnitude);
      if (std::fabs(wide) != value || std::signbit(wide) != (bits != magnitude)) {
        REQUIRE(wide == value);
        REQUIRE(std::signbit(wide) == (bits != magnitude));
      }
      if (TestType(static_cast<float>(x)).bits != bits) FAIL("does not narrow back");
    } else if (F::kHasInf && magnitude == F::kMaxFinite + 1) {
      REQUIRE(std::isinf(wide));
      REQUIRE(std::signbit(wide) == (bits != magnitude));
    } else {
      REQUIRE(std::isnan(wide));
      REQUIRE(TestType(static_cast<float>(x)).bits == F::kNan);
    }
  }
}

TEMPLATE_TEST_CASE("pairs convert like single values", "[req:1.23][scalar]", f16, bf16, e4m3,
                   e5m2) {
  TestType pair[2];
  oriel::device::narrow_pair(1.7f, -3e5f, pair);
  REQUIRE(pair[0].bits == TestType(1.7f).bits);
  REQUIRE(pair[1].bits == TestType(-3e5f).bits);
  float low = 0;
  float high = 0;
  oriel::device::widen_pair(pair, low, high);
  REQUIRE(low == static_cast<float>(pair[0]));
  REQUIRE(high == static_cast<float>(pair[1]));
}

TEST_CASE("conversions are constant expressions", "[req:1.23][scalar]") {
  STATIC_REQUIRE(f16(1.0f).bits == 0x3c00);
  STATIC_REQUIRE(bf16(1.0f).bits == 0x3f80);
  STATIC_REQUIRE(e4m3(1000.0f).bits == 0x7e);
  STATIC_REQUIRE(static_cast<float>(e5m2::from_bits(0x01)) == 0x1p-16f);
  STATIC_REQUIRE(sizeof(f16) == 2);
  STATIC_REQUIRE(sizeof(e4m3) == 1);
  STATIC_REQUIRE(std::is_trivial_v<bf16>);
}

#if HAVE_CUDA_TYPES
TEMPLATE_TEST_CASE("conversions equal CUDA's host ones", "[req:1.23][scalar]", f16, bf16, e4m3,
                   e5m2) {
  const auto check = [](float x) {
    const unsigned ours = TestType(x).bits;
    const unsigned cuda = narrow_by_cuda(x, TestType());
    if (ours != cuda) {
      INFO("f32 bits " << std::hex << bits_of(x));
      REQUIRE(ours == cuda);
    }
  };
  for (const float x : critical_floats<TestType>()) check(x);
  const std::uint64_t seed = oriel::test::test_seed();
  std::mt19937 rng(seed);
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  constexpr int kRandomFloats = 50'000'000;
#else
  constexpr int kRandomFloats = 1'000'000;
#endif
  for (int i = 0; i < kRandomFloats; ++i) check(float_of(static_cast<std::uint32_t>(rng())));
  for (unsigned bits = 0; bits < 2 * kSignBit<TestType>; ++bits) {
    const TestType x = TestType::from_bits(static_cast<decltype(TestType::bits)>(bits));
    if (bits_of(static_cast<float>(x)) != bits_of(widen_by_cuda(x))) {
      INFO("bits " << std::hex << bits);
      REQUIRE(bits_of(static_cast<float>(x)) == bits_of(widen_by_cuda(x)));
    }
  }
}
#else
TEST_CASE("conversions equal CUDA's host ones", "[req:1.23][scalar]") {
  WARN("skipped: CUDA's headers are not on this machine");
}
#endif
