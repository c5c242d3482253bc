// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/types.hpp"

#include "kernels/plan/algorithm.hpp"

namespace oriel::kernels {

enum class Collective : std::uint8_t;
enum class ExchangeForm : std::uint8_t;

/// Most threads of a CTA.
inline constexpr int kMaxThreads = 512;
inline constexpr int kMaxWarps = kMaxThreads / 32;
inline constexpr int kMinThreads = 32;
/// Most sub-CTAs of a CTA, each of which streams by itself.
inline constexpr int kMostSubCtas = 2;

/// Kernels are compiled for two, for four and for any number of ranks.
enum class RankVariant : std::uint8_t { two = 0, four = 1, any = 2 };
constexpr RankVariant variant_for(int ranks) {
  return ranks == 2 ? RankVariant::two : ranks == 4 ? RankVariant::four : RankVariant::any;
}

/// Entry points of the kernels for one element type, by algorithm (one of those for GPUs), family
/// of operations and number of ranks. Each takes one AllReduceArguments by value.
struct KernelSet {
  const void* kernel[kGpuAlgorithmCount][3][3] = {};
  const void* hierarchy = nullptr;  ///< takes one HierarchyArguments by value
};

namespace detail {
/// An exchange, for all types. Takes one ExchangeArguments by value.
const void* exchange_kernel_for(ExchangeForm form);
/// A streamed broadcast, all-gather or all-to-all, for all types. Takes one AllReduceArguments by
/// value.
const void* copy_stream_kernel_for(Collective collective, int ranks);
/// One for each type, in all_reduce_<type>.cu.
KernelSet kernel_set_i8();
KernelSet kernel_set_u8();
KernelSet kernel_set_i32();
KernelSet kernel_set_u32();
KernelSet kernel_set_i64();
KernelSet kernel_set_u64();
KernelSet kernel_set_f16();
KernelSet kernel_set_f32();
KernelSet kernel_set_f64();
KernelSet kernel_set_bf16();
KernelSet kernel_set_e4m3();
KernelSet kernel_set_e5m2();
}  // namespace detail

}  // namespace oriel::kernels
