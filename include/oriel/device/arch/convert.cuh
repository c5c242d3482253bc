// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if !defined(__CUDACC__)
#error "oriel/device/arch/convert.cuh is for CUDA compilers; include oriel/device/scalar.hpp"
#endif

#include <cstdint>

/// GPU instructions for the operations that scalar.hpp and reduce.hpp define in portable C++.
/// Results are bit-equal to the portable definitions, except for some NaNs. Widening may keep the
/// sign or payload of a NaN, and min_nan and max_nan drop both. reduce.hpp canonicalises NaNs
/// before it stores them. All functions are for device code only: any thread may call them, they do
/// not block or synchronise, access no memory and have no errors.
///
/// Example: multiplies two f16 by a factor in f32.
/// ```cpp
/// __device__ std::uint32_t scale_f16_pair(std::uint32_t pair, float factor) {
///   namespace arch = oriel::device::arch;
///   const float low = arch::widen_f16(static_cast<std::uint16_t>(pair));
///   const float high = arch::widen_f16(static_cast<std::uint16_t>(pair >> 16));
///   return arch::narrow_f16_pair(arch::multiply(low, factor), arch::multiply(high, factor));
/// }
/// ```
namespace oriel::device::arch {

/// Defined as 1 if the target GPU converts 8-bit floats in hardware, otherwise 0.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define ORIEL_ARCH_HAS_FP8 1
#else
#define ORIEL_ARCH_HAS_FP8 0
#endif

/// Converts an f16 to f32; exact.
__device__ __forceinline__ float widen_f16(std::uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}

/// Converts an f32 to f16, rounded to nearest even; overflows to infinity.
__device__ __forceinline__ std::uint16_t narrow_f16(float x) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

/// Converts an f32 to bf16, rounded to nearest even; overflows to infinity.
__device__ __forceinline__ std::uint16_t narrow_bf16(float x) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

/// Converts two values to f16 at once, the first into the low half: one instruction instead of
/// three.
__device__ __forceinline__ std::uint32_t narrow_f16_pair(float low, float high) {
  std::uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

/// Converts two values to bf16 at once, as narrow_f16_pair does.
__device__ __forceinline__ std::uint32_t narrow_bf16_pair(float low, float high) {
  std::uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

#if ORIEL_ARCH_HAS_FP8
/// Converts two values to e4m3 at once, the first into the low byte. Saturates.
__device__ __forceinline__ std::uint16_t narrow_e4m3_pair(float low, float high) {
  std::uint16_t bits;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}

/// Converts two values to e5m2 at once, the first into the low byte. Saturates.
__device__ __forceinline__ std::uint16_t narrow_e5m2_pair(float low, float high) {
  std::uint16_t bits;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
  return bits;
}

/// Converts two e4m3 to two f16; exact, because f16 can represent every value of either 8-bit
/// format.
__device__ __forceinline__ std::uint32_t widen_e4m3_pair_to_f16(std::uint16_t bits) {
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(bits));
  return halves;
}

/// Converts two e5m2 to two f16; exact.
__device__ __forceinline__ std::uint32_t widen_e5m2_pair_to_f16(std::uint16_t bits) {
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(bits));
  return halves;
}
#endif  // ORIEL_ARCH_HAS_FP8

/// Returns the minimum; NaN if either argument is NaN. -0 is below +0.
__device__ __forceinline__ float min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

/// Returns the maximum; NaN if either argument is NaN. -0 is below +0.
__device__ __forceinline__ float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

/// Multiplies so that the compiler neither contracts the operation into a fused multiply-add nor
/// approximates it, whatever the compile flags.
__device__ __forceinline__ float multiply(float a, float b) {
  return __fmul_rn(a, b);
}
/// Multiplies as above.
__device__ __forceinline__ double multiply(double a, double b) {
  return __dmul_rn(a, b);
}
/// Divides so that the compiler does not approximate the operation, whatever the compile flags.
__device__ __forceinline__ float divide(float a, float b) {
  return __fdiv_rn(a, b);
}
/// Divides as above.
__device__ __forceinline__ double divide(double a, double b) {
  return __ddiv_rn(a, b);
}

}  // namespace oriel::device::arch
