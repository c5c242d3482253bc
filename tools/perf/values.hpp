// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "oriel/types.hpp"

/// Inputs of a measurement and checks of its results, one source for CPU and GPU. Type, operation,
/// seed, rank and index determine an input value. So every rank can compute every element of the
/// result without the other ranks' inputs; floats are computed in f64. Nothing here uses
/// conversions of the library under test.

#if defined(__CUDACC__)
#define ORIEL_PERF_HD __host__ __device__
#else
#define ORIEL_PERF_HD
#endif

namespace oriel::perf {

/// Parameters that determine the inputs of one round.
struct Pattern {
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int ranks = 1;
  std::uint64_t seed = 0;
};

/// A binary floating-point format of at most 16 bits. If kFiniteOnly, the top exponent holds
/// numbers and only the all-ones code is NaN (e4m3).
template <int kExponentBits, int kMantissaBits, bool kFiniteOnly>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr std::uint32_t kTop = (1u << kExponentBits) - 1;

  ORIEL_PERF_HD static float decode(std::uint32_t code) {
    const std::uint32_t mantissa = code & ((1u << kMantissaBits) - 1);
    const std::uint32_t exponent = (code >> kMantissaBits) & kTop;
    const float sign = (code >> (kExponentBits + kMantissaBits)) & 1 ? -1.0f : 1.0f;
    if (exponent == 0)
      return sign * ldexpf(static_cast<float>(mantissa), 1 - kBias - kMantissaBits);
    const bool special =
        exponent == kTop && (!kFiniteOnly || mantissa == (1u << kMantissaBits) - 1);
    if (special) return mantissa != 0 ? NAN : sign * INFINITY;
    const std::uint32_t bits =
        ((exponent + 127 - kBias) << 23) | (mantissa << (23 - kMantissaBits));
    float magnitude;
    memcpy(&magnitude, &bits, sizeof magnitude);
    return sign * magnitude;
  }
  /// Requires a value that the format represents exactly.
  ORIEL_PERF_HD static std::uint32_t encode(float value) {
    std::uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const std::uint32_t sign = (bits >> 31) << (kExponentBits + kMantissaBits);
    const int exponent = static_cast<int>((bits >> 23) & 0xff) - 127 + kBias;
    if (exponent <= 0)
      return sign | static_cast<std::uint32_t>(ldexpf(fabsf(value), kBias - 1 + kMantissaBits));
    return sign | (static_cast<std::uint32_t>(exponent) << kMantissaBits) |
           ((bits & 0x7fffff) >> (23 - kMantissaBits));
  }
};

/// Storage of a type and, for floats, its precision in bits.
template <DataType>
struct Element;
template <typename T>
struct IntegerElement {
  using Storage = T;
  static constexpr bool kInteger = true;
};
template <typename StorageType, int kBits, typename Codec>
struct SmallFloatElement {
  using Storage = StorageType;
  static constexpr bool kInteger = false;
  static constexpr int kPrecision = kBits;
  ORIEL_PERF_HD static double decode(Storage code) { return Codec::decode(code); }
  ORIEL_PERF_HD static Storage encode(double value) {
    return static_cast<Storage>(Codec::encode(static_cast<float>(value)));
  }
};
template <typename T, int kBits>
struct NativeFloatElement {
  using Storage = T;
  static constexpr bool kInteger = false;
  static constexpr int kPrecision = kBits;
  ORIEL_PERF_HD static double decode(T value) { return value; }
  ORIEL_PERF_HD static T encode(double value) { return static_cast<T>(value); }
};
// clang-format off
template <> struct Element<DataType::i8> : IntegerElement<std::int8_t> {};
template <> struct Element<DataType::u8> : IntegerElement<std::uint8_t> {};
template <> struct Element<DataType::i32> : IntegerElement<std::int32_t> {};
template <> struct Element<DataType::u32> : IntegerElement<std::uint32_t> {};
template <> struct Element<DataType::i64> : IntegerElement<std::int64_t> {};
template <> struct Element<DataType::u64> : IntegerElement<std::uint64_t> {};
template <> struct Element<DataType::f16>
    : SmallFloatElement<std::uint16_t, 11, SmallFloat<5, 10, false>> {};
template <> struct Element<DataType::bf16>
    : SmallFloatElement<std::uint16_t, 8, SmallFloat<8, 7, false>> {};
template <> struct Element<DataType::e4m3>
    : SmallFloatElement<std::uint8_t, 4, SmallFloat<4, 3, true>> {};
template <> struct Element<DataType::e5m2>
    : SmallFloatElement<std::uint8_t, 3, SmallFloat<5, 2, false>> {};
template <> struct Element<DataType::f32> : NativeFloatElement<float, 24> {};
template <> struct Element<DataType::f64> : NativeFloatElement<double, 53> {};
// clang-format on

/// Calls f(std::integral_constant<DataType, type>{}).
template <typename F>
auto with_type(DataType type, F&& f) {
  switch (type) {
    case DataType::i8:
      return f(std::integral_constant<DataType, DataType::i8>{});
    case DataType::u8:
      return f(std::integral_constant<DataType, DataType::u8>{});
    case DataType::i32:
      return f(std::integral_constant<DataType, DataType::i32>{});
    case DataType::u32:
      return f(std::integral_constant<DataType, DataType::u32>{});
    case DataType::i64:
      return f(std::integral_constant<DataType, DataType::i64>{});
    case DataType::u64:
      return f(std::integral_constant<DataType, DataType::u64>{});
    case DataType::f16:
      return f(std::integral_constant<DataType, DataType::f16>{});
    case DataType::bf16:
      return f(std::integral_constant<DataType, DataType::bf16>{});
    case DataType::e4m3:
      return f(std::integral_constant<DataType, DataType::e4m3>{});
    case DataType::e5m2:
      return f(std::integral_constant<DataType, DataType::e5m2>{});
    case DataType::f64:
      return f(std::integral_constant<DataType, DataType::f64>{});
    case DataType::f32:
      break;
  }
  return f(std::integral_constant<DataType, DataType::f32>{});
}

/// Maps 64-bit words one to one to words that look random: the finaliser of splitmix64 (G. Steele,
/// D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014).
ORIEL_PERF_HD inline std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
ORIEL_PERF_HD inline std::uint64_t key_of(std::uint64_t seed, int rank) {
  return scramble(seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank) + 1);
}

/// Returns the scalar of rank `rank` for premul_sum, exact in every type.
ORIEL_PERF_HD inline double premul_scalar(DataType type, int rank) {
  const bool coarse = type == DataType::e4m3 || type == DataType::e5m2;
  if (coarse) return 1 + rank % 2;
  const bool is_float = type == DataType::f16 || type == DataType::bf16 || type == DataType::f32 ||
                        type == DataType::f64;
  return (1 + rank % 3) * (is_float ? 0.5 : 1.0);
}

/// Returns an input value that the type represents exactly.
template <DataType kType>
ORIEL_PERF_HD double float_input(ReduceOp op, int rank, std::uint64_t random) {
  constexpr int kPrecision = Element<kType>::kPrecision;
  if (op == ReduceOp::prod) {
    // Magnitudes in [1, 2) on even ranks and [0.5, 1) on odd ones keep long products in range.
    constexpr int kBits = kPrecision - 1 < 4 ? kPrecision - 1 : 4;
    const double fraction = static_cast<double>(random >> (64 - kBits)) / (1 << kBits);
    return (random & 1 ? -1 : 1) * (1 + fraction) * (rank % 2 ? 0.5 : 1.0);
  }
  const bool extremum = op == ReduceOp::min || op == ReduceOp::max;
  if (kPrecision <= 4 && !extremum) {
    // Small integers add up in 8-bit floats without rounding, so the exact result is known.
    return static_cast<double>(random >> 62 == 0 ? 0 : (random & 1 ? -1 : 1));
  }
  // 40-bit values of f64 leave room for exact sums in f64, the precision of the reference.
  constexpr int kBits = kPrecision > 40 ? 40 : kPrecision;
  constexpr double kScale = 1.0 / static_cast<double>(std::uint64_t{1} << (kBits - 1));
  const auto drawn = static_cast<std::int64_t>(random >> (64 - kBits));
  return static_cast<double>(drawn - (std::int64_t{1} << (kBits - 1))) * kScale;
}

template <DataType kType>
ORIEL_PERF_HD typename Element<kType>::Storage input_at(ReduceOp op, int rank, std::uint64_t key,
                                                        std::uint64_t index) {
  using Storage = typename Element<kType>::Storage;
  const std::uint64_t random = scramble(key + index * 0x9e3779b97f4a7c15u);
  if constexpr (Element<kType>::kInteger)
    return static_cast<Storage>(random >> (64 - 8 * sizeof(Storage)));
  else
    return Element<kType>::encode(float_input<kType>(op, rank, random));
}

/// Checks one integer result. Sums and products wrap, as unsigned arithmetic does; an average
/// divides the wrapped sum and truncates.
template <DataType kType>
ORIEL_PERF_HD bool integer_result_ok(const Pattern& p, const std::uint64_t* keys,
                                     std::uint64_t index, typename Element<kType>::Storage result) {
  using Storage = typename Element<kType>::Storage;
  std::uint64_t wrapped = p.op == ReduceOp::prod ? 1 : 0;
  Storage extremum = input_at<kType>(p.op, 0, keys[0], index);
  for (int rank = 0; rank < p.ranks; ++rank) {
    const Storage value = input_at<kType>(p.op, rank, keys[rank], index);
    // The cast through a signed word extends the sign of negative values.
    const auto word = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    switch (p.op) {
      case ReduceOp::prod:
        wrapped *= word;
        break;
      case ReduceOp::min:
        extremum = value < extremum ? value : extremum;
        break;
      case ReduceOp::max:
        extremum = value > extremum ? value : extremum;
        break;
      case ReduceOp::premul_sum:
        wrapped += word * static_cast<std::uint64_t>(premul_scalar(kType, rank));
        break;
      default:
        wrapped += word;
    }
  }
  if (p.op == ReduceOp::min || p.op == ReduceOp::max) return result == extremum;
  Storage expected = static_cast<Storage>(wrapped);
  if (p.op == ReduceOp::avg) {
    // Signed types divide as signed, unsigned ones as unsigned; both round toward zero.
    if constexpr (std::is_signed_v<Storage>)
      expected = static_cast<Storage>(static_cast<std::int64_t>(expected) / p.ranks);
    else
      expected = static_cast<Storage>(static_cast<std::uint64_t>(expected) /
                                      static_cast<std::uint64_t>(p.ranks));
  }
  return result == expected;
}

/// Checks one float result against an error bound. Sums in any order, each rounded in the type, err
/// by at most ((1 + u)^k - 1) x (sum of magnitudes) after k roundings. Here u is the unit roundoff
/// (N. Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapter 4).
template <DataType kType>
ORIEL_PERF_HD bool float_result_ok(const Pattern& p, const std::uint64_t* keys, std::uint64_t index,
                                   double result) {
  double sum = 0, magnitudes = 0, product = 1;
  double least = HUGE_VAL, most = -HUGE_VAL;
  for (int rank = 0; rank < p.ranks; ++rank) {
    double value = Element<kType>::decode(input_at<kType>(p.op, rank, keys[rank], index));
    if (p.op == ReduceOp::premul_sum) value *= premul_scalar(kType, rank);
    sum += value;
    magnitudes += fabs(value);
    product *= value;
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  if (p.op == ReduceOp::min) return result == least;
  if (p.op == ReduceOp::max) return result == most;
  constexpr int kPrecision = Element<kType>::kPrecision;
  constexpr double kRoundoff = 1.0 / static_cast<double>(std::uint64_t{1} << kPrecision);
  if (kPrecision <= 4 && (p.op == ReduceOp::sum || p.op == ReduceOp::premul_sum) &&
      magnitudes <= static_cast<double>(std::uint64_t{1} << kPrecision))
    return result == sum;
  double growth = 0;  // (1 + u)^k - 1, without the rounding error of 1 + u
  for (int k = 0; k < p.ranks + 2; ++k) growth += kRoundoff + growth * kRoundoff;
  // Absolute error from underflow: half of the smallest subnormal per rank. The smallest subnormal
  // is 2^-9 in e4m3 and 2^-16 in e5m2, the largest of the other small formats.
  const double underflow = kType == DataType::e4m3 ? p.ranks * 0x1p-10
                           : kPrecision <= 11      ? p.ranks * 0x1p-17
                                                   : 0;
  const double scale = p.op == ReduceOp::avg ? 1.0 / p.ranks : 1.0;
  const double expected = p.op == ReduceOp::prod ? product : sum * scale;
  const double size = p.op == ReduceOp::prod ? fabs(product) : magnitudes * scale;
  const bool may_underflow = p.op != ReduceOp::sum;
  return fabs(result - expected) <= growth * size + (may_underflow ? underflow : 0);
}

/// Returns true if `result` is right at `index`. `keys` holds key_of(seed, rank) of every rank.
template <DataType kType>
ORIEL_PERF_HD bool result_ok(const Pattern& p, const std::uint64_t* keys, std::uint64_t index,
                             typename Element<kType>::Storage result) {
  if constexpr (Element<kType>::kInteger)
    return integer_result_ok<kType>(p, keys, index, result);
  else
    return float_result_ok<kType>(p, keys, index, Element<kType>::decode(result));
}

/// Returns the byte that fills outputs before a checked run. All-ones is NaN in every float type;
/// for integers, the byte differs from nearly all inputs.
ORIEL_PERF_HD inline std::uint8_t poison_byte(DataType type) {
  switch (type) {
    case DataType::i8:
    case DataType::u8:
    case DataType::i32:
    case DataType::u32:
    case DataType::i64:
    case DataType::u64:
      return 0xa5;
    default:
      return 0xff;
  }
}

/// Returns one element's term of an output's digest. The digest is the sum of all terms. The
/// coordinator compares the ranks' digests instead of their results.
ORIEL_PERF_HD inline std::uint64_t digest_term(std::uint64_t index, std::uint64_t bits) {
  return scramble(scramble(index + 1) + bits);
}

}  // namespace oriel::perf
