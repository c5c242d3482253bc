// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/config.hpp"
#include "oriel/device/scalar.hpp"
#include "oriel/types.hpp"

/// Reduction of one element. Each rank's input is loaded into an accumulator. The accumulators are
/// combined along a fixed binary tree over the rank index. The result is converted to the element
/// type. Every algorithm, on GPU and CPU, produces the same bits.
///
/// - Accumulators: f32 for f32 and for 16- and 8-bit floats, f64 for f64, and the integer type
///   itself for integers. A float result is rounded to its type once, in finish().
/// - Integers wrap. Their average is the wrapped sum divided by the number of ranks, truncated
///   toward zero.
/// - NaN propagates through min and max, and -0 is below +0. Every NaN in a result is the canonical
///   NaN: all bits set below a clear sign bit, whichever instruction or rank made it.
/// - premul_sum multiplies each rank's input by that rank's own scalar. It rounds the product to
///   the element type before adding. Sender-side and receiver-side scaling therefore give equal
///   bits.
///
/// All functions are local, do not block, access no memory but their arguments, and have no errors.
/// Each thread calls these functions on objects of its own. They are usable in constant
/// expressions. They assume the default rounding mode.
///
/// Example: computes one element of an all-reduce with the average, for up to 8 ranks.
/// ```cpp
/// ORIEL_DEVICE_FN oriel::device::bf16 average(const oriel::device::bf16* inputs, int ranks) {
///   using namespace oriel::device;
///   using Average = Reduction<bf16, oriel::ReduceOp::avg>;
///   const Average reduction{ranks};
///   const auto load = [&](int rank) { return reduction.load(inputs[rank]); };
///   const auto add = [&](float lower, float upper) { return reduction.combine(lower, upper); };
///   return reduction.finish(fold_tree<8>(ranks, load, add));
/// }
/// ```
/// @file

/// ORIEL_CALLS_ANY precedes a function that calls a callable of its caller, for example a kernel's
/// lambda. Without it nvcc refuses a __device__ lambda in a function that the host may call as
/// well.
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

/// On a CPU, prevents the compiler from fusing a rounded product with a following addition. gcc
/// fuses by default on targets with a fused instruction. Does nothing in GPU code, where multiply()
/// uses arch::multiply().
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

/// Returns a * b, rounded and not fused with an addition. Integers wrap.
template <typename A>
ORIEL_DEVICE_FN constexpr A multiply(A a, A b) {
  if constexpr (std::is_floating_point_v<A>) {
#if ORIEL_DEVICE_CODE
    if (!__builtin_is_constant_evaluated()) return arch::multiply(a, b);
#endif
    return keep_rounded(a * b);
  } else {
    // Uses 64 bits, because unsigned types below int are promoted to int, which must not overflow.
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

/// Type in which elements of type T are combined.
template <typename T>
using Accumulator = typename detail::AccumulatorImpl<T>::Type;

/// Steps of one reduction on elements of type T (std::int8_t ... double, f16, bf16, e4m3, e5m2).
template <typename T, ReduceOp op>
struct Reduction {
  using Element = T;           ///< type of inputs and results
  using Acc = Accumulator<T>;  ///< type in which they are combined

  /// Number of ranks, at least 1; only the average uses it.
  int n_ranks = 1;

  /// Loads one rank's input. For premul_sum the input must already be scaled.
  ORIEL_DEVICE_FN constexpr Acc load(T x) const { return static_cast<Acc>(x); }

  /// Loads one rank's input with that rank's scalar, which only premul_sum uses.
  ORIEL_DEVICE_FN constexpr Acc load(T x, T scalar) const {
    if constexpr (op == ReduceOp::premul_sum) {
      return static_cast<Acc>(scale(x, scalar));
    } else {
      return static_cast<Acc>(x);
    }
  }

  /// Returns x * scalar, rounded to T: the data to send if the sender scales.
  ORIEL_DEVICE_FN static constexpr T scale(T x, T scalar) {
    return static_cast<T>(detail::multiply(static_cast<Acc>(x), static_cast<Acc>(scalar)));
  }

  /// Combines a subtree of lower ranks with its right-hand neighbour. Commutative except for the
  /// bits of a NaN, but not associative.
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

  /// Returns the element to store, after all ranks' inputs are combined.
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

/// Combination order of all reductions: pairwise summation (Higham, The accuracy of floating point
/// summation, 1993). Leaves are pushed in rank order, and equal-sized neighbouring subtrees merge
/// at once, as bits carry in a binary counter. Three leaves give (0+1)+2, seven give
/// ((0+1)+(2+3))+((4+5)+6). If the ranks of a node are an aligned power-of-two range, they form a
/// subtree, which may be reduced separately.
///
/// Value is an accumulator or an array of accumulators. At most kMax leaves fit. After unrolling
/// every index is a compile-time constant, so on a GPU the stack of log2(kMax)+1 values stays in
/// registers. Choose kMax as small as the caller's ranks allow.
template <typename Value, int kMax = 64>
class TreeFold {
  static_assert(kMax >= 1 && (kMax & (kMax - 1)) == 0, "a power of two");

 public:
  /// Adds the next rank's value. combine(lower, upper) combines two values.
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

  /// Combines the remaining subtrees, from the highest ranks down. Requires at least one push.
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

  /// Returns the number of leaves pushed so far.
  ORIEL_DEVICE_FN constexpr int count() const { return count_; }

 private:
  static constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }
  static constexpr int kLevels = log2_of(kMax) + 1;
  Value stack_[kLevels] = {};
  int count_ = 0;
};

/// Combines leaf(0) ... leaf(n-1) in the order of TreeFold, for a run-time n from 1 to kMax.
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

/// Combines leaf(0) ... leaf(kCount-1) as fold_tree does, for a compile-time count: no stack, no
/// branches.
ORIEL_CALLS_ANY
template <int kCount, typename Leaf, typename Combine>
ORIEL_DEVICE_FN constexpr auto fold_tree_fixed(const Leaf& leaf, const Combine& combine) {
  static_assert(kCount >= 1);
  return detail::fold_tree_range<0, kCount>(leaf, combine);
}

}  // namespace oriel::device
