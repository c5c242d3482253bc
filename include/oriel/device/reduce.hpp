// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/config.hpp"
#include "oriel/device/scalar.hpp"
#include "oriel/types.hpp"

/// What a reduction means, for one element: each rank's input is loaded into an accumulator, the
/// accumulators are combined along a fixed binary tree over the rank index, and the result is
/// finished into the element type. Every algorithm, on GPU and CPU, gives these bits.
///
/// - Accumulators: f32 for 16- and 8-bit floats and f32, f64 for f64, integers in their own width.
///   A float result is rounded to its type once, in finish().
/// - Integers wrap. Their average is the wrapped sum divided by the number of ranks, truncated
///   toward zero.
/// - NaN propagates through min and max, and -0 is below +0. Every NaN in a result is the canonical
///   one, all ones below a clear sign bit, whichever instruction or rank made it.
/// - premul_sum multiplies each rank's input by that rank's own scalar and rounds the product to
/// the
///   element type before adding, so that the sender may scale, or the receiver: the bits are equal.
///
/// All functions: local, no memory access, no synchronisation, no errors; usable in constant
/// expressions. They assume the default rounding mode.
// Stands before a function that calls what the caller passes in, a kernel's lambda for example:
// without it nvcc refuses a __device__ lambda in a function that the host may call as well.
#if defined(__CUDACC__)
#define ORIEL_CALLS_ANY _Pragma("nv_exec_check_disable")
#else
#define ORIEL_CALLS_ANY
#endif

namespace oriel::device {

namespace detail {

template <typename T>
struct AccumulatorImpl {
  using Type = std::conditional_t<kIsSmallFloat<T>, float, T>;
};

ORIEL_DEVICE_FN constexpr float canonical(float x) {
  return x == x ? x : float_of(0x7fffffffu);
}
ORIEL_DEVICE_FN constexpr double canonical(double x) {
  return x == x ? x : __builtin_bit_cast(double, 0x7fffffffffffffffull);
}

ORIEL_DEVICE_FN constexpr bool sign_bit(float x) {
  return (bits_of(x) >> 31) != 0;
}
ORIEL_DEVICE_FN constexpr bool sign_bit(double x) {
  return (__builtin_bit_cast(std::uint64_t, x) >> 63) != 0;
}

template <typename A>
ORIEL_DEVICE_FN constexpr A minimum(A a, A b) {
  if constexpr (std::is_floating_point_v<A>) {
#if ORIEL_DEVICE_CODE
    if constexpr (std::is_same_v<A, float>) {
      if (!__builtin_is_constant_evaluated()) return arch::min_nan(a, b);
    }
#endif
    if (a != a) return a;  // NOLINT(misc-redundant-expression): NaN
    if (b != b) return b;  // NOLINT(misc-redundant-expression): NaN
    if (a == b) return sign_bit(a) ? a : b;
  }
  return b < a ? b : a;
}

template <typename A>
ORIEL_DEVICE_FN constexpr A maximum(A a, A b) {
  if constexpr (std::is_floating_point_v<A>) {
#if ORIEL_DEVICE_CODE
    if constexpr (std::is_same_v<A, float>) {
      if (!__builtin_is_constant_evaluated()) return arch::max_nan(a, b);
    }
#endif
    if (a != a) return a;  // NOLINT(misc-redundant-expression): NaN
    if (b != b) return b;  // NOLINT(misc-redundant-expression): NaN
    if (a == b) return sign_bit(a) ? b : a;
  }
  return a < b ? b : a;
}

/// Returns a rounded product so that no compiler can fuse it with an addition that follows, which
/// gcc does by default where there is an instruction for it.
template <typename A>
ORIEL_DEVICE_FN constexpr A keep_rounded(A product) {
  if (!__builtin_is_constant_evaluated()) {
#if ORIEL_DEVICE_CODE
#elif defined(__x86_64__)
    asm("" : "+x"(product));
#elif defined(__aarch64__)
    asm("" : "+w"(product));
#else
    volatile A stored = product;
    product = stored;
#endif
  }
  return product;
}

/// a * b, rounded, and not fused with an addition; integers wrap.
template <typename A>
ORIEL_DEVICE_FN constexpr A multiply(A a, A b) {
  if constexpr (std::is_floating_point_v<A>) {
#if ORIEL_DEVICE_CODE
    if (!__builtin_is_constant_evaluated()) return arch::multiply(a, b);
#endif
    return keep_rounded(a * b);
  } else {
    // 64 bits, because unsigned types below int are promoted to int, which must not overflow.
    return static_cast<A>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
  }
}

template <typename A>
ORIEL_DEVICE_FN constexpr A add(A a, A b) {
  if constexpr (std::is_floating_point_v<A>) {
    return a + b;
  } else {
    return static_cast<A>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
}

template <typename A>
ORIEL_DEVICE_FN constexpr A divide(A sum, int n_ranks) {
  if constexpr (std::is_floating_point_v<A>) {
#if ORIEL_DEVICE_CODE
    if (!__builtin_is_constant_evaluated()) return arch::divide(sum, static_cast<A>(n_ranks));
#endif
    return sum / static_cast<A>(n_ranks);
  } else if constexpr (std::is_signed_v<A>) {
    return static_cast<A>(static_cast<std::int64_t>(sum) / n_ranks);
  } else {
    return static_cast<A>(static_cast<std::uint64_t>(sum) / static_cast<std::uint64_t>(n_ranks));
  }
}

}  // namespace detail

/// The type in which elements of type T are combined.
template <typename T>
using Accumulator = typename detail::AccumulatorImpl<T>::Type;

/// The three steps of one reduction on elements of type T (std::int8_t ... double, f16, bf16, e4m3,
/// e5m2).
template <typename T, ReduceOp op>
struct Reduction {
  using Element = T;
  using Acc = Accumulator<T>;

  /// Number of ranks, at least 1; only the average looks at it.
  int n_ranks = 1;

  /// One rank's input. Not for premul_sum, unless the input is scaled already.
  ORIEL_DEVICE_FN constexpr Acc load(T x) const { return static_cast<Acc>(x); }

  /// One rank's input with that rank's scalar, which only premul_sum looks at.
  ORIEL_DEVICE_FN constexpr Acc load(T x, T scalar) const {
    if constexpr (op == ReduceOp::premul_sum) {
      return static_cast<Acc>(scale(x, scalar));
    } else {
      return static_cast<Acc>(x);
    }
  }

  /// x * scalar, rounded to T: what a rank sends if the sender scales.
  ORIEL_DEVICE_FN static constexpr T scale(T x, T scalar) {
    return static_cast<T>(detail::multiply(static_cast<Acc>(x), static_cast<Acc>(scalar)));
  }

  /// Joins a subtree of lower ranks with its right-hand neighbour. Commutative up to the bits of a
  /// NaN, but not associative.
  ORIEL_DEVICE_FN constexpr Acc combine(Acc lower, Acc upper) const {
    if constexpr (op == ReduceOp::min) {
      return detail::minimum(lower, upper);
    } else if constexpr (op == ReduceOp::max) {
      return detail::maximum(lower, upper);
    } else if constexpr (op == ReduceOp::prod) {
      return detail::multiply(lower, upper);
    } else {
      return detail::add(lower, upper);
    }
  }

  /// The element to store, once all ranks' inputs are combined.
  ORIEL_DEVICE_FN constexpr T finish(Acc acc) const {
    if constexpr (op == ReduceOp::avg) acc = detail::divide(acc, n_ranks);
    if constexpr (kIsSmallFloat<T>) {
      return T(acc);
    } else if constexpr (std::is_floating_point_v<T>) {
      return detail::canonical(acc);
    } else {
      return acc;
    }
  }
};

/// The combination order of all reductions: leaves are pushed in rank order, and equal-sized
/// neighbouring subtrees merge at once, as bits carry in a binary counter. Three leaves give
/// (0+1)+2, seven give ((0+1)+(2+3))+((4+5)+6). A node whose ranks are an aligned power-of-two run
/// is a subtree, so it may be reduced on its own.
///
/// Value is an accumulator or an array of them; at most kMax leaves fit. Every index is a
/// compile-time constant after unrolling, so on a GPU the stack of log2(kMax)+1 values stays in
/// registers: choose kMax as small as the caller's ranks allow.
template <typename Value, int kMax = 64>
class TreeFold {
  static_assert(kMax >= 1 && (kMax & (kMax - 1)) == 0, "a power of two");

 public:
  /// Adds the next rank's value. combine(lower, upper) joins two values.
  ORIEL_CALLS_ANY
  template <typename Combine>
  ORIEL_DEVICE_FN constexpr void push(Value value, const Combine& combine) {
    bool carrying = true;
    ORIEL_DEVICE_UNROLL
    for (int level = 0; level < kLevels; ++level) {
      if (!carrying) continue;
      if ((count_ >> level) & 1) {
        value = combine(stack_[level], value);
      } else {
        stack_[level] = value;
        carrying = false;
      }
    }
    ++count_;
  }

  /// Joins what remains, from the highest ranks down. Requires at least one push.
  ORIEL_CALLS_ANY
  template <typename Combine>
  ORIEL_DEVICE_FN constexpr Value finish(const Combine& combine) const {
    Value value{};
    bool found = false;
    ORIEL_DEVICE_UNROLL
    for (int level = 0; level < kLevels; ++level) {
      if (((count_ >> level) & 1) == 0) continue;
      value = found ? combine(stack_[level], value) : stack_[level];
      found = true;
    }
    return value;
  }

  /// Leaves pushed so far.
  ORIEL_DEVICE_FN constexpr int count() const { return count_; }

 private:
  static constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }
  static constexpr int kLevels = log2_of(kMax) + 1;
  Value stack_[kLevels] = {};
  int count_ = 0;
};

/// leaf(0) ... leaf(n-1) combined in the order of TreeFold, for n from 1 to kMax at run time.
ORIEL_CALLS_ANY
template <int kMax = 64, typename Leaf, typename Combine>
ORIEL_DEVICE_FN constexpr auto fold_tree(int n, const Leaf& leaf, const Combine& combine) {
  TreeFold<std::decay_t<decltype(leaf(0))>, kMax> fold;
  for (int k = 0; k < n; ++k) fold.push(leaf(k), combine);
  return fold.finish(combine);
}

namespace detail {
ORIEL_CALLS_ANY
template <int kFirst, int kCount, typename Leaf, typename Combine>
ORIEL_DEVICE_FN constexpr auto fold_tree_range(const Leaf& leaf, const Combine& combine) {
  if constexpr (kCount == 1) {
    return leaf(kFirst);
  } else {
    constexpr int kHalf = [] {
      int power = 1;
      while (power * 2 < kCount) power *= 2;
      return power;
    }();
    const auto lower = fold_tree_range<kFirst, kHalf>(leaf, combine);
    return combine(lower, fold_tree_range<kFirst + kHalf, kCount - kHalf>(leaf, combine));
  }
}
}  // namespace detail

/// The same for a number of leaves known at compile time: no stack, no branches.
ORIEL_CALLS_ANY
template <int kCount, typename Leaf, typename Combine>
ORIEL_DEVICE_FN constexpr auto fold_tree_fixed(const Leaf& leaf, const Combine& combine) {
  static_assert(kCount >= 1);
  return detail::fold_tree_range<0, kCount>(leaf, combine);
}

}  // namespace oriel::device
