// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conversions between a register of elements and accumulators. In an unnamed namespace: see
// simd.hpp.

#include "kernels/loops/simd.hpp"

namespace oriel::kernels::host {
namespace {

/// Accumulators of one register's elements. Integers of any size, float and double take one
/// register, 16-bit floats two, and 8-bit floats four. Accumulators need not be in
/// the order of the elements.
template <typename V, int kRegisters>
struct Group {
  V v[kRegisters];
};

// Elements<T> widens a register of T to accumulators, narrows accumulators to T, and rounds a
// product of accumulators to T. kIsLong: the conversion takes so many instructions that code for
// several sources at once would be larger but not faster.

/// Elements that are their own accumulators.
template <typename T>
struct Elements {
  using AccElement = T;
  static constexpr int kRegisters = 1;
  static constexpr bool kIsLong = false;
  using Acc = Group<Vector<T>, 1>;
  using Raw = Vector<T>;
  ORIEL_VECTOR_FN Acc widen(Raw raw) { return {{raw}}; }
  ORIEL_VECTOR_FN Raw narrow(Acc acc) { return acc.v[0]; }
  ORIEL_VECTOR_FN Vector<T> round(Vector<T> x) { return x; }
};

template <>
struct Elements<float> {
  using AccElement = float;
  static constexpr int kRegisters = 1;
  static constexpr bool kIsLong = false;
  using Acc = Group<Vector<float>, 1>;
  using Raw = Vector<float>;
  ORIEL_VECTOR_FN Acc widen(Raw raw) { return {{raw}}; }
  ORIEL_VECTOR_FN Raw narrow(Acc acc) { return canonical(acc.v[0]); }
  ORIEL_VECTOR_FN Vector<float> round(Vector<float> x) { return x; }
};

template <>
struct Elements<double> {
  using AccElement = double;
  static constexpr int kRegisters = 1;
  static constexpr bool kIsLong = false;
  using Acc = Group<Vector<double>, 1>;
  using Raw = Vector<double>;
  ORIEL_VECTOR_FN Acc widen(Raw raw) { return {{raw}}; }
  ORIEL_VECTOR_FN Raw narrow(Acc acc) { return canonical(acc.v[0]); }
  ORIEL_VECTOR_FN Vector<double> round(Vector<double> x) { return x; }
};

// bf16: even elements are the low halves of 32-bit lanes, odd elements the high halves. So no
// element changes its lane.
template <>
struct Elements<device::bf16> {
  using AccElement = float;
  static constexpr int kRegisters = 2;
  static constexpr bool kIsLong = false;
  using Acc = Group<VectorF32, 2>;
  using Raw = VectorU32;
  ORIEL_VECTOR_FN Acc widen(Raw raw) {
    return {{(VectorF32)(raw << 16), (VectorF32)(raw & 0xffff0000u)}};
  }
  ORIEL_VECTOR_FN Raw narrow(Acc acc) {
    return (rounded(acc.v[0]) >> 16) | (rounded(acc.v[1]) & 0xffff0000u);
  }
  ORIEL_VECTOR_FN VectorF32 round(VectorF32 x) { return (VectorF32)(rounded(x) & 0xffff0000u); }

 private:
  // Rounds to nearest even; the upper half of each lane is the result.
  ORIEL_VECTOR_FN VectorU32 rounded(VectorF32 x) {
    const VectorU32 u = (VectorU32)x;
    const VectorU32 up = u + 0x7fffu + ((u >> 16) & 1u);
    return x == x ? up : splat(0x7fffffffu);
  }
};

#if ORIEL_VECTOR_BYTES >= 32
// Conversion instructions of the processor between a register of f32 and half a register of f16.
// They keep the sign and payload of a NaN.
typedef std::uint64_t HalfVector __attribute__((vector_size(kVectorBytes / 2)));
#if ORIEL_VECTOR_BYTES == 64
ORIEL_VECTOR_FN VectorF32 widen_half(HalfVector bits) {
  return (VectorF32)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits);
}
ORIEL_VECTOR_FN HalfVector narrow_half(VectorF32 x) {
  return (HalfVector)_mm512_maskz_cvtps_ph(0xffff, (__m512)x,
                                           _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
template <typename Raw>
ORIEL_VECTOR_FN HalfVector lower_half(Raw raw) {
  return __builtin_shufflevector((Vector<std::uint64_t>)raw, (Vector<std::uint64_t>)raw, 0, 1, 2,
                                 3);
}
template <typename Raw>
ORIEL_VECTOR_FN HalfVector upper_half(Raw raw) {
  return __builtin_shufflevector((Vector<std::uint64_t>)raw, (Vector<std::uint64_t>)raw, 4, 5, 6,
                                 7);
}
ORIEL_VECTOR_FN Vector<std::uint64_t> join_halves(HalfVector low, HalfVector high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}
#else
ORIEL_VECTOR_FN VectorF32 widen_half(HalfVector bits) {
  return (VectorF32)_mm256_cvtph_ps((__m128i)bits);
}
ORIEL_VECTOR_FN HalfVector narrow_half(VectorF32 x) {
  return (HalfVector)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
template <typename Raw>
ORIEL_VECTOR_FN HalfVector lower_half(Raw raw) {
  return __builtin_shufflevector((Vector<std::uint64_t>)raw, (Vector<std::uint64_t>)raw, 0, 1);
}
template <typename Raw>
ORIEL_VECTOR_FN HalfVector upper_half(Raw raw) {
  return __builtin_shufflevector((Vector<std::uint64_t>)raw, (Vector<std::uint64_t>)raw, 2, 3);
}
ORIEL_VECTOR_FN Vector<std::uint64_t> join_halves(HalfVector low, HalfVector high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}
#endif

template <>
struct Elements<device::f16> {
  using AccElement = float;
  static constexpr int kRegisters = 2;
  static constexpr bool kIsLong = false;
  using Acc = Group<VectorF32, 2>;
  using Raw = VectorU16;
  ORIEL_VECTOR_FN Acc widen(Raw raw) {
    return {{widen_half(lower_half(raw)), widen_half(upper_half(raw))}};
  }
  ORIEL_VECTOR_FN Raw narrow(Acc acc) {
    return canonical_halves((Raw)join_halves(narrow_half(acc.v[0]), narrow_half(acc.v[1])));
  }
  ORIEL_VECTOR_FN VectorF32 round(VectorF32 x) { return widen_half(narrow_half(x)); }

 private:
  ORIEL_VECTOR_FN Raw canonical_halves(Raw bits) {
    const VectorI16 magnitude = (VectorI16)(bits & std::uint16_t{0x7fff});
    return magnitude > std::int16_t{0x7c00} ? splat(std::uint16_t{0x7fff}) : bits;
  }
};
#else
template <>
struct Elements<device::f16> {
  using AccElement = float;
  static constexpr int kRegisters = 2;
  static constexpr bool kIsLong = true;
  using Acc = Group<VectorF32, 2>;
  using Raw = VectorU32;
  ORIEL_VECTOR_FN Acc widen(Raw raw) {
    return {{(VectorF32)device::detail::widen_bits_f16<VectorF32>(raw & 0xffffu),
             (VectorF32)device::detail::widen_bits_f16<VectorF32>(raw >> 16)}};
  }
  ORIEL_VECTOR_FN Raw narrow(Acc acc) {
    return device::detail::narrow_bits_f16<VectorF32>((VectorU32)acc.v[0]) |
           (device::detail::narrow_bits_f16<VectorF32>((VectorU32)acc.v[1]) << 16);
  }
  ORIEL_VECTOR_FN VectorF32 round(VectorF32 x) {
    return (VectorF32)device::detail::widen_bits_f16<VectorF32>(
        device::detail::narrow_bits_f16<VectorF32>((VectorU32)x));
  }
};
#endif

#if ORIEL_VECTOR_BYTES >= 32
// Converts 8-bit floats through f16, which represents all their values. So the processor does the
// widening and the last step of the narrowing. Even elements are in registers 0 and 1, odd elements
// in registers 2 and 3. An e5m2 value has its bits in the upper byte of its f16. An e4m3 value,
// scaled by 2^-8, has its bits one place lower, because its exponent bias is 7 and that of f16 is
// 15.
template <typename Format>
struct ByteElements {
  using AccElement = float;
  static constexpr int kRegisters = 4;
  static constexpr bool kIsLong = true;
  using Acc = Group<VectorF32, 4>;
  using Raw = VectorU16;

  ORIEL_VECTOR_FN Acc widen(Raw raw) {
    const Raw even = to_halves(raw << 8);
    const Raw odd = to_halves(raw & std::uint16_t{0xff00});
    return {{unscaled(widen_half(lower_half(even))), unscaled(widen_half(upper_half(even))),
             unscaled(widen_half(lower_half(odd))), unscaled(widen_half(upper_half(odd)))}};
  }

  ORIEL_VECTOR_FN Raw narrow(Acc acc) {
    return (from_halves(narrow_two(acc.v[0], acc.v[1])) >> 8) |
           from_halves(narrow_two(acc.v[2], acc.v[3]));
  }

  // Saturates and rounds. Rounding adds and subtracts a power of two, whose unit in the last place
  // is the format's at this magnitude. NaN passes through.
  ORIEL_VECTOR_FN VectorF32 round(VectorF32 x) {
    const VectorU32 bits = (VectorU32)x;
    const VectorF32 magnitude =
        less_or_second((VectorF32)splat(Format::kMax), (VectorF32)(bits & 0x7fffffffu));
    using VectorI32 = Vector<std::int32_t>;
    // A NaN wraps to a negative number, and so takes the least power.
    const VectorI32 shifted =
        (VectorI32)(((VectorU32)magnitude & 0x7f800000u) + (Format::kMantissaShift << 23));
    const VectorI32 least = splat(std::int32_t{Format::kMagicBits});
    const VectorF32 magic = (VectorF32)(shifted > least ? shifted : least);
    const VectorU32 rounded = (VectorU32)((magnitude + magic) - magic);
    return (VectorF32)(rounded | (bits & 0x80000000u));
  }

 private:
  static constexpr bool kScales = Format::kMantissaShift == 20;

  ORIEL_VECTOR_FN VectorF32 unscaled(VectorF32 x) {
    if constexpr (kScales) return x * 256.0f;
    return x;
  }

  ORIEL_VECTOR_FN Raw narrow_two(VectorF32 low, VectorF32 high) {
    low = round(low);
    high = round(high);
    if constexpr (kScales) {
      low = low * 0.00390625f;
      high = high * 0.00390625f;
    }
    return (Raw)join_halves(narrow_half(low), narrow_half(high));
  }

  // Converts an element in the upper byte of a 16-bit lane to f16.
  ORIEL_VECTOR_FN Raw to_halves(Raw bytes) {
    if constexpr (!kScales) return bytes;
    const Raw magnitude = (bytes & std::uint16_t{0x7f00}) >> 1;
    const Raw nan = (Raw)(magnitude == std::uint16_t{0x3f80});
    return (bytes & std::uint16_t{0x8000}) | magnitude | (nan & std::uint16_t{0x7fff});
  }

  // Converts f16 to an element in the upper byte; every NaN becomes 0x7f.
  ORIEL_VECTOR_FN Raw from_halves(Raw halves) {
    const VectorI16 magnitude = (VectorI16)(halves & std::uint16_t{0x7fff});
    Raw bytes = halves & std::uint16_t{0xff00};
    if constexpr (kScales) {
      bytes = (halves & std::uint16_t{0x8000}) | ((halves << 1) & std::uint16_t{0x7f00});
    }
    return magnitude > std::int16_t{0x7c00} ? splat(std::uint16_t{0x7f00}) : bytes;
  }
};
#else
/// 8-bit floats: byte j of every 32-bit lane goes to register j.
template <typename Format>
struct ByteElements {
  using AccElement = float;
  static constexpr int kRegisters = 4;
  static constexpr bool kIsLong = true;
  using Acc = Group<VectorF32, 4>;
  using Raw = VectorU32;
  ORIEL_VECTOR_FN Acc widen(Raw raw) {
    return {{widen_vector(raw & 0xffu), widen_vector((raw >> 8) & 0xffu),
             widen_vector((raw >> 16) & 0xffu), widen_vector(raw >> 24)}};
  }
  ORIEL_VECTOR_FN Raw narrow(Acc acc) {
    return narrow_vector(acc.v[0]) | (narrow_vector(acc.v[1]) << 8) |
           (narrow_vector(acc.v[2]) << 16) | (narrow_vector(acc.v[3]) << 24);
  }
  ORIEL_VECTOR_FN VectorF32 round(VectorF32 x) { return widen_vector(narrow_vector(x)); }

 private:
  ORIEL_VECTOR_FN VectorF32 widen_vector(VectorU32 bits) {
    if constexpr (Format::kMantissaShift == 20) {
      return (VectorF32)device::detail::widen_bits_e4m3<VectorF32>(bits);
    } else {
      return (VectorF32)device::detail::widen_bits_f16<VectorF32>(bits << 8);
    }
  }
  ORIEL_VECTOR_FN VectorU32 narrow_vector(VectorF32 x) {
    return device::detail::narrow_bits_fp8<Format, VectorF32>((VectorU32)x);
  }
};
#endif

template <>
struct Elements<device::e4m3> : ByteElements<device::detail::E4M3> {};
template <>
struct Elements<device::e5m2> : ByteElements<device::detail::E5M2> {};

}  // namespace
}  // namespace oriel::kernels::host
