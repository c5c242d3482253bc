// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loop template for every type, operation and instruction set. In an unnamed namespace: see
// simd.hpp.

#include <type_traits>

#include "kernels/loops/float_environment.hpp"
#include "kernels/loops/loop_tables.hpp"
#include "kernels/loops/reduce_loops.hpp"
#include "kernels/loops/simd_elements.hpp"

namespace oriel::kernels::host {
namespace {

/// Divides sums of T, held in E, by n_ranks and truncates toward zero. No vector instruction exists
/// for integer division. A float represents every operand of an 8-bit quotient exactly, and a
/// double every operand of a 32-bit quotient. A quotient that is no integer is at least 1/n below
/// the next integer, so rounding does not reach that integer. Cutting off the fraction is therefore
/// exact.
template <typename T, typename E>
ORIEL_VECTOR_FN Vector<E> divide_integers(Vector<E> sums, int n_ranks) {
  constexpr int kElements = kVectorBytes / static_cast<int>(sizeof(T));
  T elements[kElements];
  __builtin_memcpy(elements, &sums, sizeof(elements));
  if constexpr (sizeof(T) == 8) {
    for (T& element : elements) element = static_cast<T>(element / static_cast<T>(n_ranks));
  } else {
    using Wide = std::conditional_t<sizeof(T) == 1, float, double>;
    using Quotient = std::conditional_t<sizeof(T) == 1, std::int32_t, std::int64_t>;
    const Wide n = static_cast<Wide>(n_ranks);
    for (T& element : elements)
      element = static_cast<T>(static_cast<Quotient>(static_cast<Wide>(element) / n));
  }
  __builtin_memcpy(&sums, elements, sizeof(elements));
  return sums;
}

/// Vector form of device::Reduction<T, op>.
template <typename T, ReduceOp op>
struct VectorReduction {
  static constexpr bool kIsInteger = std::is_integral_v<T>;
  static constexpr bool kOrders = op == ReduceOp::min || op == ReduceOp::max;
  // Unsigned arithmetic wraps. Only comparisons and division need the sign.
  struct Same {
    using type = T;
  };
  using Element =
      typename std::conditional_t<kIsInteger && !kOrders, std::make_unsigned<T>, Same>::type;
  using Conversions = Elements<Element>;
  using AccElement = typename Conversions::AccElement;
  using Acc = typename Conversions::Acc;
  using Raw = typename Conversions::Raw;
  static constexpr int kRegisters = Conversions::kRegisters;

  explicit VectorReduction(const ReduceLoopArgs& args) : n_ranks_(args.n_ranks_for_avg) {
    if constexpr (op == ReduceOp::avg && !kIsInteger) {
      divisor_ = static_cast<AccElement>(n_ranks_);
      // If n is a power of two, multiplying by 1/n gives the same bits as dividing by n, and is
      // faster.
      divides_ = (n_ranks_ & (n_ranks_ - 1)) != 0;
      reciprocal_ = AccElement{1} / divisor_;
    }
    if constexpr (op == ReduceOp::premul_sum) {
      for (int k = 0; k < args.n_srcs; ++k) {
        Element scalar;
        __builtin_memcpy(&scalar, args.scalars + 8 * k, sizeof(scalar));
        scalars_.values[k] = static_cast<AccElement>(scalar);
      }
    }
  }

  inline __attribute__((always_inline)) Acc load(const std::byte* from, int k) const {
    Acc acc = Conversions::widen(load_vector<Raw>(from));
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) {
      if constexpr (op == ReduceOp::premul_sum) {
        acc.v[r] = Conversions::round(acc.v[r] * splat(scalars_.values[k]));
      }
      // max(a, b) is -min(-a, -b): flips all signs, see minimum().
      if constexpr (op == ReduceOp::max && !kIsInteger) acc.v[r] = flip_sign(acc.v[r]);
    }
    return acc;
  }

  inline __attribute__((always_inline)) Acc combine(Acc a, Acc b) const {
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) {
      if constexpr (kOrders && !kIsInteger) {
        a.v[r] = minimum(a.v[r], b.v[r]);
      } else if constexpr (op == ReduceOp::min) {
        a.v[r] = b.v[r] < a.v[r] ? b.v[r] : a.v[r];
      } else if constexpr (op == ReduceOp::max) {
        a.v[r] = a.v[r] < b.v[r] ? b.v[r] : a.v[r];
      } else if constexpr (op == ReduceOp::prod) {
        a.v[r] = a.v[r] * b.v[r];
      } else {
        a.v[r] = a.v[r] + b.v[r];
      }
    }
    return a;
  }

  inline __attribute__((always_inline)) Raw finish(Acc acc) const {
#pragma GCC unroll 4
    for (int r = 0; r < kRegisters; ++r) {
      if constexpr (op == ReduceOp::max && !kIsInteger) acc.v[r] = flip_sign(acc.v[r]);
      if constexpr (op == ReduceOp::avg && !kIsInteger) {
        acc.v[r] = divides_ ? acc.v[r] / splat(divisor_) : acc.v[r] * splat(reciprocal_);
      }
      if constexpr (op == ReduceOp::avg && kIsInteger) {
        acc.v[r] = divide_integers<T, Element>(acc.v[r], n_ranks_);
      }
    }
    return Conversions::narrow(acc);
  }

 private:
  struct Scalars {
    AccElement values[kMaxLoopArrays];
  };
  struct Nothing {};

  int n_ranks_;
  bool divides_ = false;
  AccElement divisor_{1};
  AccElement reciprocal_{1};
  [[no_unique_address]] std::conditional_t<op == ReduceOp::premul_sum, Scalars, Nothing> scalars_;
};

/// Accumulators of kUnroll neighbouring registers, folded over the sources as one value.
template <typename Acc, int kUnroll>
struct Strip {
  Acc acc[kUnroll];
};

template <typename R, int kUnroll>
ORIEL_VECTOR_FN Strip<typename R::Acc, kUnroll> load_strip(const R& reduction,
                                                           const std::byte* const* srcs, int k,
                                                           std::size_t offset) {
  Strip<typename R::Acc, kUnroll> strip;
#pragma GCC unroll 4
  for (int u = 0; u < kUnroll; ++u) {
    strip.acc[u] = reduction.load(srcs[k] + offset + u * kVectorBytes, k);
  }
  return strip;
}

/// Returns the size of the groups of sources that fold_strip() folds in registers, if the number of
/// sources is known only at run time. The results are the leaves of the upper tree, which keeps its
/// subtrees in memory. If kIsLong, groups would only make the code larger.
template <typename R>
constexpr int group_size() {
  return R::Conversions::kIsLong ? 1 : 4;
}

/// Folds all sources at one offset. kSources is the number of sources if it is 2 or 4, else 0.
template <int kSources, int kUnroll, typename R>
ORIEL_VECTOR_FN Strip<typename R::Acc, kUnroll> fold_strip(const R& reduction,
                                                           const std::byte* const* srcs, int n_srcs,
                                                           std::size_t offset) {
  using Value = Strip<typename R::Acc, kUnroll>;
  const auto combine = [&](Value a, const Value& b) __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) a.acc[u] = reduction.combine(a.acc[u], b.acc[u]);
    return a;
  };
  const auto leaf = [&](int k) __attribute__((always_inline)) {
    return load_strip<R, kUnroll>(reduction, srcs, k, offset);
  };
  if constexpr (kSources > 0) {
    return device::fold_tree_fixed<kSources>(leaf, combine);
  } else {
    constexpr int kGroup = group_size<R>();
    Value stack[kMaxLoopArrays / 4];  // at most one subtree of each power of two
    int top = 0;
    for (int group = 0; group < n_srcs / kGroup; ++group) {
      const auto member = [&](int k) __attribute__((always_inline)) {
        return leaf(kGroup * group + k);
      };
      Value value = device::fold_tree_fixed<kGroup>(member, combine);
      for (int carry = group; (carry & 1) != 0; carry >>= 1) value = combine(stack[--top], value);
      stack[top++] = value;
    }
    Value value;
    const int rest = n_srcs % kGroup;
    if (rest > 0) {
      value = leaf(n_srcs - rest);
      if (rest >= 2) value = combine(value, leaf(n_srcs - rest + 1));
      if (rest == 3) value = combine(value, leaf(n_srcs - 1));
    } else {
      value = stack[--top];
    }
    while (top > 0) value = combine(stack[--top], value);
    return value;
  }
}

/// Reduces one register at any offset, and stores the finished result.
template <typename R>
__attribute__((noinline)) void reduce_one(const R& reduction, const std::byte* const* srcs,
                                          int n_srcs, std::size_t offset, std::byte* result) {
  const auto strip = fold_strip<0, 1>(reduction, srcs, n_srcs, offset);
  store_vector(result, reduction.finish(strip.acc[0]));
}

/// Reduces fewer bytes than a register holds, through padded copies of the sources.
template <typename R>
__attribute__((noinline)) void reduce_short(const R& reduction, const ReduceLoopArgs& args,
                                            std::size_t bytes) {
  alignas(kVectorBytes) std::byte staged[kMaxLoopArrays][kVectorBytes];
  const std::byte* srcs[kMaxLoopArrays];
  for (int k = 0; k < args.n_srcs; ++k) {
    store_vector(staged[k], load_partial(args.srcs[k], bytes));
    srcs[k] = staged[k];
  }
  alignas(kVectorBytes) std::byte result[kVectorBytes];
  reduce_one(reduction, srcs, args.n_srcs, 0, result);
  const auto padded = load_vector<Vector<std::uint64_t>>(result);
  for (int d = 0; d < args.n_dsts; ++d) store_partial(args.dsts[d], padded, bytes);
  clear_upper_halves();
}

ORIEL_VECTOR_FN void copy_result(const ReduceLoopArgs& args, std::size_t offset,
                                 const std::byte* result) {
  for (int d = 0; d < args.n_dsts; ++d) {
    __builtin_memcpy(args.dsts[d] + offset, result, kVectorBytes);
  }
}

/// Reduces [begin, end), whose length is a multiple of the register size. If `streaming`, all
/// destinations are aligned at `begin`.
template <int kSources, typename R>
void reduce_span(const R& reduction, const ReduceLoopArgs& args, std::size_t begin, std::size_t end,
                 bool streaming) {
  constexpr int kUnroll = R::kRegisters > 1 ? 1 : kSources == 2 ? 4 : 2;
  const std::byte* srcs[kMaxLoopArrays];
  const int n_srcs = kSources > 0 ? kSources : args.n_srcs;
  for (int k = 0; k < n_srcs; ++k) srcs[k] = args.srcs[k];
  std::byte* const first = args.dsts[0];
  const bool plain = args.n_dsts == 1 && !streaming;
  std::size_t offset = begin;
  for (; end - offset >= kUnroll * kVectorBytes; offset += kUnroll * kVectorBytes) {
    const auto strip = fold_strip<kSources, kUnroll>(reduction, srcs, n_srcs, offset);
    typename R::Raw raw[kUnroll];
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) raw[u] = reduction.finish(strip.acc[u]);
    if (plain) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) store_vector(first + offset + u * kVectorBytes, raw[u]);
      continue;
    }
    for (int d = 0; d < args.n_dsts; ++d) {
      std::byte* const to = args.dsts[d] + offset;
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) {
        streaming ? stream_vector(to + u * kVectorBytes, raw[u])
                  : store_vector(to + u * kVectorBytes, raw[u]);
      }
    }
  }
  if constexpr (kUnroll > 1) {
    alignas(kVectorBytes) std::byte result[kVectorBytes];
    for (; offset < end; offset += kVectorBytes) {
      reduce_one(reduction, srcs, n_srcs, offset, result);
      copy_result(args, offset, result);
    }
  }
}

/// Returns the bytes from `address` to the next multiple of the register size, or 0 if that
/// multiple is not on an element boundary.
ORIEL_VECTOR_FN std::size_t bytes_to_alignment(const std::byte* address, std::size_t element) {
  const std::size_t gap = -reinterpret_cast<std::uintptr_t>(address) % kVectorBytes;
  return gap % element == 0 ? gap : 0;
}

/// Runs the loop. Whole registers are stored aligned to the first destination, except in short
/// arrays. The rest at each end is covered by an overlapping register. Its result is computed
/// before the main loop and stored after it. Otherwise, with a destination equal to a source, the
/// main loop would overwrite its inputs.
template <typename T, ReduceOp op>
void reduce(const ReduceLoopArgs& args) {
  using R = VectorReduction<T, op>;
  if (args.count == 0) return;
  const FloatEnvironment environment;
  const R reduction(args);
  const std::size_t bytes = args.count * sizeof(T);
  if (bytes < kVectorBytes) return reduce_short(reduction, args, bytes);

  std::size_t begin = bytes_to_alignment(args.dsts[0], sizeof(T));
  if (bytes < 8 * kVectorBytes) begin = 0;
  const std::size_t end = begin + (bytes - begin) / kVectorBytes * kVectorBytes;
  bool streaming = args.streaming;
  for (int d = 0; d < args.n_dsts && streaming; ++d) {
    streaming = (reinterpret_cast<std::uintptr_t>(args.dsts[d]) + begin) % kVectorBytes == 0;
  }

  alignas(kVectorBytes) std::byte head[kVectorBytes];
  alignas(kVectorBytes) std::byte tail[kVectorBytes];
  if (begin > 0) reduce_one(reduction, args.srcs, args.n_srcs, 0, head);
  if (end < bytes) reduce_one(reduction, args.srcs, args.n_srcs, bytes - kVectorBytes, tail);
  if constexpr (group_size<R>() == 1) {
    reduce_span<0>(reduction, args, begin, end, streaming);
  } else if (args.n_srcs == 2) {
    reduce_span<2>(reduction, args, begin, end, streaming);
  } else if (args.n_srcs == 4) {
    reduce_span<4>(reduction, args, begin, end, streaming);
  } else {
    reduce_span<0>(reduction, args, begin, end, streaming);
  }
  if (begin > 0) copy_result(args, 0, head);
  if (end < bytes) copy_result(args, bytes - kVectorBytes, tail);
  if (streaming) fence_streams();
}

/// Returns a row of the table, in the order of ReduceOp. Signed integers use the loops of unsigned
/// ones, except for order and division.
template <typename T>
constexpr LoopRow make_row() {
  using W = typename VectorReduction<T, ReduceOp::sum>::Element;
  return {{reduce<W, ReduceOp::sum>, reduce<W, ReduceOp::prod>, reduce<T, ReduceOp::max>,
           reduce<T, ReduceOp::min>, reduce<T, ReduceOp::avg>, reduce<W, ReduceOp::premul_sum>}};
}

}  // namespace
}  // namespace oriel::kernels::host
