// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/types.hpp"
#if defined(__CUDACC__)
#include "oriel/device/arch/convert.cuh"
#endif

/// 16- and 8-bit floats of the collectives: storage, and conversion from and to f32. Needs no CUDA
/// header. The layouts equal those of __half, __nv_bfloat16, __nv_fp8_e4m3 and __nv_fp8_e5m2. A
/// user's array of those types may be read through these types by memcpy.
///
/// Narrowing rounds once, to nearest, ties to even. f16 and bf16 overflow to infinity. e4m3 and
/// e5m2 saturate: too large values, including infinity, become the largest finite value of their
/// sign. Every NaN becomes the canonical NaN: all bits set below a clear sign bit (0x7fff, 0x7f).
/// Subnormals are kept. The results equal those of __float2half_rn, __float2bfloat16_rn and
/// __nv_cvt_float_to_fp8(x, __NV_SATFINITE, ...), bit for bit. Widening is exact.
///
/// All functions are local and thread-safe, do not block, access no memory but their arguments, and
/// have no errors. They are usable in constant expressions. They assume the default rounding mode
/// and do not depend on flush-to-zero modes.
///
/// Example: scales two neighbouring bf16 elements, rounding each product once.
/// ```cpp
/// ORIEL_DEVICE_FN constexpr void scale_pair(oriel::device::bf16 (&pair)[2], float factor) {
///   float low = 0;
///   float high = 0;
///   oriel::device::widen_pair(pair, low, high);
///   oriel::device::narrow_pair(factor * low, factor * high, pair);
/// }
/// static_assert(oriel::device::bf16(1.0f).bits == 0x3f80);
/// ```
namespace oriel::device {

namespace detail {

// The algorithms work on bit patterns. U is std::uint32_t and F float, or both are vectors of these
// with equal lanes, which the host's loops use. Vectors are the reason that the code contains only
// expressions. A subnormal result is computed by adding a power of two whose last place is the
// smallest subnormal. The addition rounds, and the low bits of the sum are the result. Giesen's
// float-to-half conversion (2012) has the same steps.

template <typename F, typename U>
ORIEL_DEVICE_FN constexpr U narrow_bits_f16(U u) {
  const U magnitude = u & 0x7fffffffu;
  const U rounded = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
  const U normal = rounded > 0x7c00u ? (rounded & 0u) | 0x7c00u : rounded;
  const U subnormal = __builtin_bit_cast(U, __builtin_bit_cast(F, magnitude) + 0.5f) - 0x3f000000u;
  const U finite = (magnitude < 0x38800000u ? subnormal : normal) | ((u >> 16) & 0x8000u);
  return magnitude > 0x7f800000u ? (finite & 0u) | 0x7fffu : finite;
}

template <typename U>
ORIEL_DEVICE_FN constexpr U narrow_bits_bf16(U u) {
  const U rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (u & 0x7fffffffu) > 0x7f800000u ? (rounded & 0u) | 0x7fffu : rounded;
}

/// Parameters that distinguish the two 8-bit formats. Values of f32 are given as bits.
struct E4M3 {
  static constexpr std::uint32_t kMantissaShift = 20;  ///< f32's mantissa bits less the format's
  static constexpr std::uint32_t kBias = 120u << 3;    ///< bias of f32 less that of the format
  static constexpr std::uint32_t kMax = 0x43e00000u;   ///< 448
  static constexpr std::uint32_t kMinNormal = 0x3c800000u;  ///< 2^-6
  static constexpr std::uint32_t kMagicBits = 0x46800000u;  ///< 2^14; its last place is 2^-9
  static constexpr float kMagic = 16384.0f;
};
struct E5M2 {
  static constexpr std::uint32_t kMantissaShift = 21;
  static constexpr std::uint32_t kBias = 112u << 2;
  static constexpr std::uint32_t kMax = 0x47600000u;        ///< 57344
  static constexpr std::uint32_t kMinNormal = 0x38800000u;  ///< 2^-14
  static constexpr std::uint32_t kMagicBits = 0x43000000u;  ///< 2^7; its last place is 2^-16
  static constexpr float kMagic = 128.0f;
};

template <typename Format, typename F, typename U>
ORIEL_DEVICE_FN constexpr U narrow_bits_fp8(U u) {
  const U magnitude = u & 0x7fffffffu;
  const U clamped = magnitude > Format::kMax ? (magnitude & 0u) | Format::kMax : magnitude;
  constexpr std::uint32_t kHalf = (1u << (Format::kMantissaShift - 1)) - 1;
  const U normal =
      ((clamped + kHalf + ((clamped >> Format::kMantissaShift) & 1u)) >> Format::kMantissaShift) -
      Format::kBias;
  const U subnormal =
      __builtin_bit_cast(U, __builtin_bit_cast(F, clamped) + Format::kMagic) - Format::kMagicBits;
  const U finite = (clamped < Format::kMinNormal ? subnormal : normal) | ((u >> 24) & 0x80u);
  return magnitude > 0x7f800000u ? (finite & 0u) | 0x7fu : finite;
}

template <typename F, typename U>
ORIEL_DEVICE_FN constexpr U widen_bits_f16(U bits) {
  const U magnitude = bits & 0x7fffu;
  const U normal = (magnitude << 13) + (112u << 23);
  const U subnormal = __builtin_bit_cast(U, __builtin_bit_cast(F, magnitude | 0x3f000000u) - 0.5f);
  const U finite = magnitude < 0x400u ? subnormal : normal;
  const U number =
      (magnitude == 0x7c00u ? (finite & 0u) | 0x7f800000u : finite) | ((bits & 0x8000u) << 16);
  return magnitude > 0x7c00u ? (number & 0u) | 0x7fffffffu : number;
}

template <typename F, typename U>
ORIEL_DEVICE_FN constexpr U widen_bits_e4m3(U bits) {
  const U magnitude = bits & 0x7fu;
  const U normal = (magnitude << E4M3::kMantissaShift) + (120u << 23);
  const U subnormal =
      __builtin_bit_cast(U, __builtin_bit_cast(F, magnitude | E4M3::kMagicBits) - E4M3::kMagic);
  const U number = (magnitude < 8u ? subnormal : normal) | ((bits & 0x80u) << 24);
  return magnitude == 0x7fu ? (number & 0u) | 0x7fffffffu : number;
}

ORIEL_DEVICE_FN constexpr std::uint32_t bits_of(float x) {
  return __builtin_bit_cast(std::uint32_t, x);
}
ORIEL_DEVICE_FN constexpr float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

ORIEL_DEVICE_FN constexpr float widen_f16(std::uint16_t bits) {
#if ORIEL_DEVICE_CODE
  if (!__builtin_is_constant_evaluated()) return arch::widen_f16(bits);
#endif
  return float_of(widen_bits_f16<float>(std::uint32_t{bits}));
}

ORIEL_DEVICE_FN constexpr std::uint16_t narrow_f16(float x) {
#if ORIEL_DEVICE_CODE
  if (!__builtin_is_constant_evaluated()) return arch::narrow_f16(x);
#endif
  return static_cast<std::uint16_t>(narrow_bits_f16<float>(bits_of(x)));
}

ORIEL_DEVICE_FN constexpr float widen_bf16(std::uint16_t bits) {
  return float_of(std::uint32_t{bits} << 16);
}

ORIEL_DEVICE_FN constexpr std::uint16_t narrow_bf16(float x) {
#if ORIEL_DEVICE_CODE
  if (!__builtin_is_constant_evaluated()) return arch::narrow_bf16(x);
#endif
  return static_cast<std::uint16_t>(narrow_bits_bf16(bits_of(x)));
}

ORIEL_DEVICE_FN constexpr float widen_e4m3(std::uint8_t bits) {
#if ORIEL_DEVICE_CODE && ORIEL_ARCH_HAS_FP8
  if (!__builtin_is_constant_evaluated()) {
    return arch::widen_f16(static_cast<std::uint16_t>(arch::widen_e4m3_pair_to_f16(bits)));
  }
#endif
  return float_of(widen_bits_e4m3<float>(std::uint32_t{bits}));
}

ORIEL_DEVICE_FN constexpr std::uint8_t narrow_e4m3(float x) {
#if ORIEL_DEVICE_CODE && ORIEL_ARCH_HAS_FP8
  if (!__builtin_is_constant_evaluated()) {
    return static_cast<std::uint8_t>(arch::narrow_e4m3_pair(x, 0.0f));
  }
#endif
  return static_cast<std::uint8_t>(narrow_bits_fp8<E4M3, float>(bits_of(x)));
}

ORIEL_DEVICE_FN constexpr float widen_e5m2(std::uint8_t bits) {
  // Widens through f16: e5m2 is the upper half of an f16.
  return widen_f16(static_cast<std::uint16_t>(bits << 8));
}

ORIEL_DEVICE_FN constexpr std::uint8_t narrow_e5m2(float x) {
#if ORIEL_DEVICE_CODE && ORIEL_ARCH_HAS_FP8
  if (!__builtin_is_constant_evaluated()) {
    return static_cast<std::uint8_t>(arch::narrow_e5m2_pair(x, 0.0f));
  }
#endif
  return static_cast<std::uint8_t>(narrow_bits_fp8<E5M2, float>(bits_of(x)));
}

}  // namespace detail

/// IEEE binary16: 1 sign, 5 exponent, 10 mantissa bits.
struct f16 {
  std::uint16_t bits;  ///< storage; the sign is the highest bit
  f16() = default;     ///< leaves the bits uninitialised
  /// Rounds to nearest, ties to even; overflows to infinity.
  ORIEL_DEVICE_FN explicit constexpr f16(float x) : bits(detail::narrow_f16(x)) {}
  /// Widens; exact.
  ORIEL_DEVICE_FN explicit constexpr operator float() const { return detail::widen_f16(bits); }
  /// Returns the number with these bits.
  ORIEL_DEVICE_FN static constexpr f16 from_bits(std::uint16_t bits);
};

/// The upper half of an f32: 1 sign, 8 exponent, 7 mantissa bits.
struct bf16 {
  std::uint16_t bits;  ///< storage; the sign is the highest bit
  bf16() = default;    ///< leaves the bits uninitialised
  /// Rounds to nearest, ties to even; overflows to infinity.
  ORIEL_DEVICE_FN explicit constexpr bf16(float x) : bits(detail::narrow_bf16(x)) {}
  /// Widens; exact.
  ORIEL_DEVICE_FN explicit constexpr operator float() const { return detail::widen_bf16(bits); }
  /// Returns the number with these bits.
  ORIEL_DEVICE_FN static constexpr bf16 from_bits(std::uint16_t bits);
};

/// 1 sign, 4 exponent, 3 mantissa bits; no infinity, NaN is 0x7f and 0xff, largest value 448.
struct e4m3 {
  std::uint8_t bits;  ///< storage; the sign is the highest bit
  e4m3() = default;   ///< leaves the bits uninitialised
  /// Rounds to nearest, ties to even; saturates.
  ORIEL_DEVICE_FN explicit constexpr e4m3(float x) : bits(detail::narrow_e4m3(x)) {}
  /// Widens; exact.
  ORIEL_DEVICE_FN explicit constexpr operator float() const { return detail::widen_e4m3(bits); }
  /// Returns the number with these bits.
  ORIEL_DEVICE_FN static constexpr e4m3 from_bits(std::uint8_t bits);
};

/// 1 sign, 5 exponent, 2 mantissa bits; largest finite value 57344.
struct e5m2 {
  std::uint8_t bits;  ///< storage; the sign is the highest bit
  e5m2() = default;   ///< leaves the bits uninitialised
  /// Rounds to nearest, ties to even; saturates.
  ORIEL_DEVICE_FN explicit constexpr e5m2(float x) : bits(detail::narrow_e5m2(x)) {}
  /// Widens; exact.
  ORIEL_DEVICE_FN explicit constexpr operator float() const { return detail::widen_e5m2(bits); }
  /// Returns the number with these bits.
  ORIEL_DEVICE_FN static constexpr e5m2 from_bits(std::uint8_t bits);
};

ORIEL_DEVICE_FN constexpr f16 f16::from_bits(std::uint16_t value) {
  return __builtin_bit_cast(f16, value);
}
ORIEL_DEVICE_FN constexpr bf16 bf16::from_bits(std::uint16_t value) {
  return __builtin_bit_cast(bf16, value);
}
ORIEL_DEVICE_FN constexpr e4m3 e4m3::from_bits(std::uint8_t value) {
  return __builtin_bit_cast(e4m3, value);
}
ORIEL_DEVICE_FN constexpr e5m2 e5m2::from_bits(std::uint8_t value) {
  return __builtin_bit_cast(e5m2, value);
}

/// True for the four types above.
template <typename T>
inline constexpr bool kIsSmallFloat = false;
template <>
inline constexpr bool kIsSmallFloat<f16> = true;  ///< f16 is a small float
template <>
inline constexpr bool kIsSmallFloat<bf16> = true;  ///< bf16 is a small float
template <>
inline constexpr bool kIsSmallFloat<e4m3> = true;  ///< e4m3 is a small float
template <>
inline constexpr bool kIsSmallFloat<e5m2> = true;  ///< e5m2 is a small float

/// Converts two neighbouring elements at once. On a GPU this is one instruction for most formats,
/// where two single conversions take three. Results equal those of T(low) and T(high).
template <typename T>
ORIEL_DEVICE_FN constexpr void narrow_pair(float low, float high, T (&out)[2]) {
  static_assert(kIsSmallFloat<T>);
#if ORIEL_DEVICE_CODE
  if (!__builtin_is_constant_evaluated()) {
    using Bits = decltype(T::bits);
    constexpr int kShift = 8 * static_cast<int>(sizeof(T));
    std::uint32_t pair = 0;
    bool done = true;
    if constexpr (__is_same(T, f16)) {
      pair = arch::narrow_f16_pair(low, high);
    } else if constexpr (__is_same(T, bf16)) {
      pair = arch::narrow_bf16_pair(low, high);
#if ORIEL_ARCH_HAS_FP8
    } else if constexpr (__is_same(T, e4m3)) {
      pair = arch::narrow_e4m3_pair(low, high);
    } else if constexpr (__is_same(T, e5m2)) {
      pair = arch::narrow_e5m2_pair(low, high);
#endif
    } else {
      done = false;
    }
    if (done) {
      out[0] = T::from_bits(static_cast<Bits>(pair));
      out[1] = T::from_bits(static_cast<Bits>(pair >> kShift));
      return;
    }
  }
#endif
  out[0] = T(low);
  out[1] = T(high);
}

/// Converts as narrow_pair does, in the reverse direction; exact.
template <typename T>
ORIEL_DEVICE_FN constexpr void widen_pair(const T (&in)[2], float& low, float& high) {
  static_assert(kIsSmallFloat<T>);
#if ORIEL_DEVICE_CODE && ORIEL_ARCH_HAS_FP8
  if constexpr (sizeof(T) == 1) {
    if (!__builtin_is_constant_evaluated()) {
      const auto pair = static_cast<std::uint16_t>(in[0].bits | (in[1].bits << 8));
      std::uint32_t halves = 0;
      if constexpr (__is_same(T, e4m3)) {
        halves = arch::widen_e4m3_pair_to_f16(pair);
      } else {
        halves = arch::widen_e5m2_pair_to_f16(pair);
      }
      low = arch::widen_f16(static_cast<std::uint16_t>(halves));
      high = arch::widen_f16(static_cast<std::uint16_t>(halves >> 16));
      return;
    }
  }
#endif
  low = static_cast<float>(in[0]);
  high = static_cast<float>(in[1]);
}

namespace detail {
// clang-format off
template <DataType type>
struct ElementOfImpl;
template <> struct ElementOfImpl<DataType::i8> { using Type = std::int8_t; };
template <> struct ElementOfImpl<DataType::u8> { using Type = std::uint8_t; };
template <> struct ElementOfImpl<DataType::i32> { using Type = std::int32_t; };
template <> struct ElementOfImpl<DataType::u32> { using Type = std::uint32_t; };
template <> struct ElementOfImpl<DataType::i64> { using Type = std::int64_t; };
template <> struct ElementOfImpl<DataType::u64> { using Type = std::uint64_t; };
template <> struct ElementOfImpl<DataType::f16> { using Type = f16; };
template <> struct ElementOfImpl<DataType::f32> { using Type = float; };
template <> struct ElementOfImpl<DataType::f64> { using Type = double; };
template <> struct ElementOfImpl<DataType::bf16> { using Type = bf16; };
template <> struct ElementOfImpl<DataType::e4m3> { using Type = e4m3; };
template <> struct ElementOfImpl<DataType::e5m2> { using Type = e5m2; };
// clang-format on
}  // namespace detail
/// C++ type of an element, as in ElementOf<DataType::bf16>.
template <DataType type>
using ElementOf = typename detail::ElementOfImpl<type>::Type;

}  // namespace oriel::device
