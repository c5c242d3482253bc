// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// How one register of elements becomes accumulators and back. In an unnamed namespace: see
// simd.hpp.

#include "kernels/host/simd.hpp"

namespace oriel::kernels::host {
namespace {

/// The accumulators of one register's elements: one register for wide types, two for 16-bit and
/// four for 8-bit floats. Lanes need not be in the order of the elements.
template <typename V, int kRegisters>
struct Group {
  V v[kRegisters];
};

/// Elements that are their own accumulators.
template <typename T>
struct Elements {
  using Lane = T;
  static constexpr int kRegisters = 1;
  using Acc = Group<Vector<T>, 1>;
  using Raw = Vector<T>;
  ORIEL_LANES_FN Acc widen(Raw raw) { return {{raw}}; }
  ORIEL_LANES_FN Raw narrow(Acc acc) { return acc.v[0]; }
  ORIEL_LANES_FN Vector<T> round(Vector<T> x) { return x; }
};

template <>
struct Elements<float> {
  using Lane = float;
  static constexpr int kRegisters = 1;
  using Acc = Group<Vector<float>, 1>;
  using Raw = Vector<float>;
  ORIEL_LANES_FN Acc widen(Raw raw) { return {{raw}}; }
  ORIEL_LANES_FN Raw narrow(Acc acc) { return canonical(acc.v[0]); }
  ORIEL_LANES_FN Vector<float> round(Vector<float> x) { return x; }
};

template <>
struct Elements<double> {
  using Lane = double;
  static constexpr int kRegisters = 1;
  using Acc = Group<Vector<double>, 1>;
  using Raw = Vector<double>;
  ORIEL_LANES_FN Acc widen(Raw raw) { return {{raw}}; }
  ORIEL_LANES_FN Raw narrow(Acc acc) { return canonical(acc.v[0]); }
  ORIEL_LANES_FN Vector<double> round(Vector<double> x) { return x; }
};

// 16-bit floats: the even elements are the low halves of 32-bit lanes, the odd ones the high
// halves, so that no element has to change its lane.
template <>
struct Elements<device::bf16> {
  using Lane = float;
  static constexpr int kRegisters = 2;
  using Acc = Group<VectorF32, 2>;
  using Raw = VectorU32;
  ORIEL_LANES_FN Acc widen(Raw raw) {
    return {{(VectorF32)(raw << 16), (VectorF32)(raw & 0xffff0000u)}};
  }
  ORIEL_LANES_FN Raw narrow(Acc acc) {
    const VectorU32 even = rounded((VectorU32)canonical(acc.v[0]));
    const VectorU32 odd = rounded((VectorU32)canonical(acc.v[1]));
    return (even >> 16) | (odd & 0xffff0000u);
  }
  ORIEL_LANES_FN VectorF32 round(VectorF32 x) {
    return (VectorF32)(rounded((VectorU32)canonical(x)) & 0xffff0000u);
  }

 private:
  // The upper half is the result. A canonical NaN, all ones below the sign, is kept by leaving the
  // increment out.
  ORIEL_LANES_FN VectorU32 rounded(VectorU32 u) {
    const VectorU32 up = u + 0x7fffu + ((u >> 16) & 1u);
    return u == 0x7fffffffu ? u : up;
  }
};

#if ORIEL_VECTOR_BYTES >= 32
// The processor's own conversions between a register of f32 and half a register of f16. They keep
// the sign and payload of a NaN.
typedef std::uint64_t HalfVector __attribute__((vector_size(kVectorBytes / 2)));
#if ORIEL_VECTOR_BYTES == 64
ORIEL_LANES_FN VectorF32 widen_half(HalfVector bits) {
  return (VectorF32)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits);
}
ORIEL_LANES_FN HalfVector narrow_half(VectorF32 x) {
  return (HalfVector)_mm512_maskz_cvtps_ph(0xffff, (__m512)x,
                                           _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
template <typename Raw>
ORIEL_LANES_FN HalfVector lower_half(Raw raw) {
  return __builtin_shufflevector((Vector<std::uint64_t>)raw, (Vector<std::uint64_t>)raw, 0, 1, 2,
                                 3);
}
template <typename Raw>
ORIEL_LANES_FN HalfVector upper_half(Raw raw) {
  return __builtin_shufflevector((Vector<std::uint64_t>)raw, (Vector<std::uint64_t>)raw, 4, 5, 6,
                                 7);
}
ORIEL_LANES_FN Vector<std::uint64_t> join_halves(HalfVector low, HalfVector high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
}
#else
ORIEL_LANES_FN VectorF32 widen_half(HalfVector bits) {
  return (VectorF32)_mm256_cvtph_ps((__m128i)bits);
}
ORIEL_LANES_FN HalfVector narrow_half(VectorF32 x) {
  return (HalfVector)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
template <typename Raw>
ORIEL_LANES_FN HalfVector lower_half(Raw raw) {
  return __builtin_shufflevector((Vector<std::uint64_t>)raw, (Vector<std::uint64_t>)raw, 0, 1);
}
template <typename Raw>
ORIEL_LANES_FN HalfVector upper_half(Raw raw) {
  return __builtin_shufflevector((Vector<std::uint64_t>)raw, (Vector<std::uint64_t>)raw, 2, 3);
}
ORIEL_LANES_FN Vector<std::uint64_t> join_halves(HalfVector low, HalfVector high) {
  return __builtin_shufflevector(low, high, 0, 1, 2, 3);
}
#endif

template <>
struct Elements<device::f16> {
  using Lane = float;
  static constexpr int kRegisters = 2;
  using Acc = Group<VectorF32, 2>;
  using Raw = VectorU16;
  ORIEL_LANES_FN Acc widen(Raw raw) {
    return {{widen_half(lower_half(raw)), widen_half(upper_half(raw))}};
  }
  ORIEL_LANES_FN Raw narrow(Acc acc) {
    return canonical_halves((Raw)join_halves(narrow_half(acc.v[0]), narrow_half(acc.v[1])));
  }
  ORIEL_LANES_FN VectorF32 round(VectorF32 x) { return widen_half(narrow_half(x)); }

 private:
  ORIEL_LANES_FN Raw canonical_halves(Raw bits) {
    const VectorI16 magnitude = (VectorI16)(bits & std::uint16_t{0x7fff});
    return magnitude > std::int16_t{0x7c00} ? splat(std::uint16_t{0x7fff}) : bits;
  }
};
#else
template <>
struct Elements<device::f16> {
  using Lane = float;
  static constexpr int kRegisters = 2;
  using Acc = Group<VectorF32, 2>;
  using Raw = VectorU32;
  ORIEL_LANES_FN Acc widen(Raw raw) {
    return {{(VectorF32)device::detail::widen_bits_f16<VectorF32>(raw & 0xffffu),
             (VectorF32)device::detail::widen_bits_f16<VectorF32>(raw >> 16)}};
  }
  ORIEL_LANES_FN Raw narrow(Acc acc) {
    return device::detail::narrow_bits_f16<VectorF32>((VectorU32)acc.v[0]) |
           (device::detail::narrow_bits_f16<VectorF32>((VectorU32)acc.v[1]) << 16);
  }
  ORIEL_LANES_FN VectorF32 round(VectorF32 x) {
    return (VectorF32)device::detail::widen_bits_f16<VectorF32>(
        device::detail::narrow_bits_f16<VectorF32>((VectorU32)x));
  }
};
#endif

/// 8-bit floats: byte j of every 32-bit lane goes to register j.
template <typename Format, VectorU32 (*widen_bits)(VectorU32)>
struct ByteElements {
  using Lane = float;
  static constexpr int kRegisters = 4;
  using Acc = Group<VectorF32, 4>;
  using Raw = VectorU32;
  ORIEL_LANES_FN Acc widen(Raw raw) {
    return {{(VectorF32)widen_bits(raw & 0xffu), (VectorF32)widen_bits((raw >> 8) & 0xffu),
             (VectorF32)widen_bits((raw >> 16) & 0xffu), (VectorF32)widen_bits(raw >> 24)}};
  }
  ORIEL_LANES_FN Raw narrow(Acc acc) {
    return narrow_lanes(acc.v[0]) | (narrow_lanes(acc.v[1]) << 8) | (narrow_lanes(acc.v[2]) << 16) |
           (narrow_lanes(acc.v[3]) << 24);
  }
  ORIEL_LANES_FN VectorF32 round(VectorF32 x) { return (VectorF32)widen_bits(narrow_lanes(x)); }

 private:
  ORIEL_LANES_FN VectorU32 narrow_lanes(VectorF32 x) {
    return device::detail::narrow_bits_fp8<Format, VectorF32>((VectorU32)x);
  }
};

ORIEL_LANES_FN VectorU32 widen_lanes_e4m3(VectorU32 bits) {
  return device::detail::widen_bits_e4m3<VectorF32>(bits);
}
ORIEL_LANES_FN VectorU32 widen_lanes_e5m2(VectorU32 bits) {
  return device::detail::widen_bits_f16<VectorF32>(bits << 8);
}

template <>
struct Elements<device::e4m3> : ByteElements<device::detail::E4M3, widen_lanes_e4m3> {};
template <>
struct Elements<device::e5m2> : ByteElements<device::detail::E5M2, widen_lanes_e5m2> {};

}  // namespace
}  // namespace oriel::kernels::host
