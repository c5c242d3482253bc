// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Vectors of the instruction set for which this translation unit is compiled. Everything is in an
// unnamed namespace, because the same source is compiled once per instruction set. The linker must
// not replace one unit's copy of a function by another's. For the same reason, include nothing here
// that defines inline functions, except always-inlined ones.

#include <cstddef>
#include <cstdint>

#include "oriel/device/reduce.hpp"
#include "oriel/device/scalar.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ORIEL_VECTOR_FN static inline __attribute__((always_inline))

namespace oriel::kernels::host {
namespace {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define ORIEL_VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__F16C__)
#define ORIEL_VECTOR_BYTES 32
#else
#define ORIEL_VECTOR_BYTES 16
#endif
constexpr int kVectorBytes = ORIEL_VECTOR_BYTES;

template <typename E>
struct VectorImpl {
  typedef E Type __attribute__((vector_size(kVectorBytes)));
};
/// A full register of E.
template <typename E>
using Vector = typename VectorImpl<E>::Type;

using VectorF32 = Vector<float>;
using VectorU32 = Vector<std::uint32_t>;
using VectorU16 = Vector<std::uint16_t>;
using VectorI16 = Vector<std::int16_t>;

template <typename V>
ORIEL_VECTOR_FN V load_vector(const std::byte* from) {
  V v;
  __builtin_memcpy(&v, from, sizeof(V));
  return v;
}

template <typename V>
ORIEL_VECTOR_FN void store_vector(std::byte* to, V v) {
  __builtin_memcpy(to, &v, sizeof(V));
}

// Load and store the first `bytes` bytes of a register, fewer than it holds. A load sets the other
// bytes to zero. They do not copy through memory: a load wider than the preceding stores cannot be
// forwarded, and waits until these have left the processor.
#if ORIEL_VECTOR_BYTES == 64
ORIEL_VECTOR_FN Vector<std::uint64_t> load_partial(const std::byte* from, std::size_t bytes) {
  return (Vector<std::uint64_t>)_mm512_maskz_loadu_epi8((__mmask64{1} << bytes) - 1, from);
}

ORIEL_VECTOR_FN void store_partial(std::byte* to, Vector<std::uint64_t> v, std::size_t bytes) {
  _mm512_mask_storeu_epi8(to, (__mmask64{1} << bytes) - 1, (__m512i)v);
}
#else
// Load and store words of 1 to 8 bytes. All processors for which this file is compiled are
// little-endian.
template <typename Part>
ORIEL_VECTOR_FN std::uint64_t load_both_ends(const std::byte* from, std::size_t bytes) {
  Part low, high;  // low and high overlap, unless `bytes` is twice their size
  __builtin_memcpy(&low, from, sizeof(Part));
  __builtin_memcpy(&high, from + bytes - sizeof(Part), sizeof(Part));
  return low | static_cast<std::uint64_t>(high) << (8 * (bytes - sizeof(Part)));
}

ORIEL_VECTOR_FN std::uint64_t load_word(const std::byte* from, std::size_t bytes) {
  if (bytes >= 4) return load_both_ends<std::uint32_t>(from, bytes);
  if (bytes >= 2) return load_both_ends<std::uint16_t>(from, bytes);
  return static_cast<std::uint64_t>(*from);
}

ORIEL_VECTOR_FN void store_word(std::byte* to, std::uint64_t word, std::size_t bytes) {
  if (bytes == 8) {
    __builtin_memcpy(to, &word, 8);
    return;
  }
  if ((bytes & 4) != 0) {
    __builtin_memcpy(to, &word, 4);
    to += 4;
    word >>= 32;
  }
  if ((bytes & 2) != 0) {
    __builtin_memcpy(to, &word, 2);
    to += 2;
    word >>= 16;
  }
  if ((bytes & 1) != 0) __builtin_memcpy(to, &word, 1);
}

[[maybe_unused]] __attribute__((noinline)) Vector<std::uint64_t> load_partial(const std::byte* from,
                                                                              std::size_t bytes) {
  Vector<std::uint64_t> v{};
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kVectorBytes / 8; ++i) {
    if (bytes > 8 * i) v[i] = load_word(from + 8 * i, bytes - 8 * i < 8 ? bytes - 8 * i : 8);
  }
  return v;
}

[[maybe_unused]] __attribute__((noinline)) void store_partial(std::byte* to,
                                                              Vector<std::uint64_t> v,
                                                              std::size_t bytes) {
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kVectorBytes / 8; ++i) {
    if (bytes > 8 * i) store_word(to + 8 * i, v[i], bytes - 8 * i < 8 ? bytes - 8 * i : 8);
  }
}
#endif

/// Clears the upper halves of the registers before code for the baseline runs, which would wait for
/// them. gcc 12 does so by itself, but not behind a call of store_partial() (docs/notes/cpu.md).
ORIEL_VECTOR_FN void clear_upper_halves() {
#if ORIEL_VECTOR_BYTES > 16
  _mm256_zeroupper();
#endif
}

/// Stores past the caches; `to` must be a multiple of kVectorBytes. Processors other than x86 store
/// as usual.
template <typename V>
ORIEL_VECTOR_FN void stream_vector(std::byte* to, V v) {
#if ORIEL_VECTOR_BYTES == 64
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)v);
#elif ORIEL_VECTOR_BYTES == 32
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)v);
#elif defined(__x86_64__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)v);
#else
  store_vector(to, v);
#endif
}

ORIEL_VECTOR_FN void fence_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <typename E>
ORIEL_VECTOR_FN Vector<E> splat(E x) {
  return Vector<E>{} + x;
}
template <>
inline __attribute__((always_inline)) Vector<float> splat(float x) {
  return x - Vector<float>{};  // 0 + x would turn -0 into +0
}
template <>
inline __attribute__((always_inline)) Vector<double> splat(double x) {
  return x - Vector<double>{};
}

/// Returns a < b ? a : b, so b if either is NaN or both are zeros: the semantics of x86's minimum.
/// (A full mask costs nothing; without a mask gcc 12 warns about its own header.)
ORIEL_VECTOR_FN Vector<float> less_or_second(Vector<float> a, Vector<float> b) {
#if ORIEL_VECTOR_BYTES == 64
  return (Vector<float>)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b);
#elif ORIEL_VECTOR_BYTES == 32
  return (Vector<float>)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
  return (Vector<float>)_mm_min_ps((__m128)a, (__m128)b);
#else
  return a < b ? a : b;
#endif
}

ORIEL_VECTOR_FN Vector<double> less_or_second(Vector<double> a, Vector<double> b) {
#if ORIEL_VECTOR_BYTES == 64
  return (Vector<double>)_mm512_maskz_min_pd(0xff, (__m512d)a, (__m512d)b);
#elif ORIEL_VECTOR_BYTES == 32
  return (Vector<double>)_mm256_min_pd((__m256d)a, (__m256d)b);
#elif defined(__x86_64__)
  return (Vector<double>)_mm_min_pd((__m128d)a, (__m128d)b);
#else
  return a < b ? a : b;
#endif
}

/// Returns the smaller of two floats, where -0 is below +0, and NaN if either is NaN. Joins both
/// orders of the operands by OR. So two zeros give -0 if either is negative, and NaN joined with
/// any value is NaN.
template <typename V>
ORIEL_VECTOR_FN V minimum(V a, V b) {
  using Bits = Vector<std::uint64_t>;
  return (V)((Bits)less_or_second(a, b) | (Bits)less_or_second(b, a));
}

ORIEL_VECTOR_FN Vector<float> flip_sign(Vector<float> x) {
  return (Vector<float>)((VectorU32)x ^ 0x80000000u);
}
ORIEL_VECTOR_FN Vector<double> flip_sign(Vector<double> x) {
  return (Vector<double>)((Vector<std::uint64_t>)x ^ 0x8000000000000000ull);
}

/// Replaces every NaN by the NaN that Reduction::finish stores.
ORIEL_VECTOR_FN Vector<float> canonical(Vector<float> x) {
  return x == x ? x : (Vector<float>)splat(0x7fffffffu);
}
ORIEL_VECTOR_FN Vector<double> canonical(Vector<double> x) {
  return x == x ? x : (Vector<double>)splat(std::uint64_t{0x7fffffffffffffffu});
}

}  // namespace
}  // namespace oriel::kernels::host
