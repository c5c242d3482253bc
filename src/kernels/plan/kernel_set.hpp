// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/types.hpp"

#include "kernels/plan/algorithm.hpp"

namespace oriel::kernels {

enum class Collective : std::uint8_t;
enum class ExchangeForm : std::uint8_t;

/// Largest number of threads of a CTA.
inline constexpr int kMaxThreads = 512;
inline constexpr int kMaxWarps = kMaxThreads / 32;
inline constexpr int kMinThreads = 32;
/// Largest number of warps that move one stream of an exchange, a power of two.
inline constexpr int kMostStreamWarps = 4;
/// Largest number of sub-CTAs of a CTA. Each sub-CTA streams independently.
inline constexpr int kMostSubCtas = 2;

/// Numbers of ranks for which kernels are compiled: two, four and eight, whose loops need no local
/// memory, and any number.
enum class RankVariant : std::uint8_t { two = 0, four = 1, eight = 2, any = 3 };
inline constexpr int kRankVariants = 4;
constexpr RankVariant variant_for(int ranks) {
  switch (ranks) {
    case 2:
      return RankVariant::two;
    case 4:
      return RankVariant::four;
    case 8:
      return RankVariant::eight;
    default:
      return RankVariant::any;
  }
}

/// Kernels of one element type, by GPU algorithm, family of operations and number of ranks. Each
/// takes one AllReduceArguments by value.
struct KernelSet {
  const void* kernel[kGpuAlgorithmCount][3][kRankVariants] = {};
  const void* hierarchy = nullptr;  ///< takes one HierarchyArguments by value
};

/// Form of the lines of a call that copies.
struct CopyLines {
  bool in_words = true;  ///< see has_word_blocks()
  bool escaped = false;  ///< EscapedLine instead of FlaggedLine
};

namespace detail {
/// Returns the kernel of exchanges, for all types. The kernel takes one ExchangeArguments by value.
const void* exchange_kernel_for(ExchangeForm form);
/// Returns the kernel of a streamed broadcast, all-gather or all-to-all, for all types. The kernel
/// takes one AllReduceArguments by value. Null for other collectives.
const void* copy_stream_kernel_for(Collective collective);
/// Returns the kernel of an all-gather, all-to-all or broadcast in lines, for all types.
/// The kernel takes one AllReduceArguments by value.
const void* copy_lines_kernel_for(Collective collective, RankVariant ranks, CopyLines lines);
/// Return the kernels of each type; defined in all_reduce_<type>.cu.
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
