// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "oriel/types.hpp"

/// The data of a measurement and what must come out of it, for CPU and GPU from one source. The
/// input of rank r at index i is a function of (seed, r, i) alone, so that every rank can work out
/// every element of the result by itself, in higher precision, without having seen the inputs.
/// Deliberately independent of the library under test: nothing here uses its conversions.

#if defined(__CUDACC__)
#define ORIEL_PERF_HD __host__ __device__
#else
#define ORIEL_PERF_HD
#endif

namespace oriel::perf {

/// What the buffers hold in one round.
struct Pattern {
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  int ranks = 1;
  std::uint64_t seed = 0;
};

/// A binary format of at most 16 bits. `finite_only`: the top exponent holds numbers, and only the
/// all-ones code is NaN (as in e4m3).
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
  /// Requires a value that the format holds exactly.
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

/// How a type is stored, and for floats how many bits of precision it has.
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

/// A bijection of 64-bit words whose output looks random: the finaliser of splitmix64
/// (G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", 2014).
ORIEL_PERF_HD inline std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
ORIEL_PERF_HD inline std::uint64_t key_of(std::uint64_t seed, int rank) {
  return scramble(seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank) + 1);
}

/// What rank `rank` multiplies its input by under premul_sum; exact in every type.
ORIEL_PERF_HD inline double premul_scalar(DataType type, int rank) {
  const bool coarse = type == DataType::e4m3 || type == DataType::e5m2;
  if (coarse) return 1 + rank % 2;
  const bool is_float = type == DataType::f16 || type == DataType::bf16 || type == DataType::f32 ||
                        type == DataType::f64;
  return (1 + rank % 3) * (is_float ? 0.5 : 1.0);
}

/// The input value, exactly representable in the type.
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
    // Of 8-bit floats only small integers add up without rounding, so that a result is right or
    // wrong and not merely near.
    return static_cast<double>(random >> 62 == 0 ? 0 : (random & 1 ? -1 : 1));
  }
  // 40 bits of an f64 leave room to sum exactly in f64, which is the reference's precision.
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

/// Integers wrap, which unsigned arithmetic defines; an average truncates the wrapped sum.
template <DataType kType>
ORIEL_PERF_HD bool integer_result_ok(const Pattern& p, const std::uint64_t* keys,
                                     std::uint64_t index, typename Element<kType>::Storage result) {
  using Storage = typename Element<kType>::Storage;
  std::uint64_t wrapped = p.op == ReduceOp::prod ? 1 : 0;
  Storage extremum = input_at<kType>(p.op, 0, keys[0], index);
  for (int rank = 0; rank < p.ranks; ++rank) {
    const Storage value = input_at<kType>(p.op, rank, keys[rank], index);
    // Through a signed word: a negative value keeps its sign in the sum, which wraps.
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
    // A signed type divides as signed and an unsigned one as unsigned, both toward zero.
    if constexpr (std::is_signed_v<Storage>)
      expected = static_cast<Storage>(static_cast<std::int64_t>(expected) / p.ranks);
    else
      expected = static_cast<Storage>(static_cast<std::uint64_t>(expected) /
                                      static_cast<std::uint64_t>(p.ranks));
  }
  return result == expected;
}

/// Any order of additions, each rounded in the type itself, errs by at most
/// ((1 + u)^k - 1) x (sum of magnitudes) after k roundings of unit roundoff u (N. Higham, "Accuracy
/// and Stability of Numerical Algorithms", 2002, chapter 4); that is what passes here.
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
  double growth = 0;  // (1 + u)^k - 1, without the loss of adding u to 1
  for (int k = 0; k < p.ranks + 2; ++k) growth += kRoundoff + growth * kRoundoff;
  // What may be lost below the smallest number of the type, which e4m3 has at 2^-9.
  const double underflow = kType == DataType::e4m3 ? p.ranks * 0x1p-10
                           : kPrecision <= 11      ? p.ranks * 0x1p-17
                                                   : 0;
  const double scale = p.op == ReduceOp::avg ? 1.0 / p.ranks : 1.0;
  const double expected = p.op == ReduceOp::prod ? product : sum * scale;
  const double size = p.op == ReduceOp::prod ? fabs(product) : magnitudes * scale;
  const bool may_underflow = p.op != ReduceOp::sum;
  return fabs(result - expected) <= growth * size + (may_underflow ? underflow : 0);
}

/// Whether `result` is right at `index`. `keys` holds key_of(seed, rank) of every rank.
template <DataType kType>
ORIEL_PERF_HD bool result_ok(const Pattern& p, const std::uint64_t* keys, std::uint64_t index,
                             typename Element<kType>::Storage result) {
  if constexpr (Element<kType>::kInteger)
    return integer_result_ok<kType>(p, keys, index, result);
  else
    return float_result_ok<kType>(p, keys, index, Element<kType>::decode(result));
}

/// What an output holds before a checked run: NaN in every float type, and for integers a byte that
/// differs from the inputs nearly everywhere.
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

/// A term of the digest of an output, by which ranks compare their results: the sum of these over
/// all elements.
ORIEL_PERF_HD inline std::uint64_t digest_term(std::uint64_t index, std::uint64_t bits) {
  return scramble(scramble(index + 1) + bits);
}

}  // namespace oriel::perf
