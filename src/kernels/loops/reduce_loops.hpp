// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/types.hpp"

/// Declares the inner loops of reductions among CPU ranks. They work element-wise over several
/// source arrays that this process has mapped, and are vectorised for the processor found at run
/// time. Every loop gives the bits of oriel::device::Reduction folded by oriel::device::TreeFold.
/// The bits do not depend on instruction set, count, alignment, or (on x86) the calling thread's
/// rounding mode and flush-to-zero mode.
///
/// Thread safety: the loops keep no state; distinct threads may work on disjoint destinations.
/// Nothing here blocks, allocates or synchronises with other ranks. The caller orders its flags
/// around a call with release and acquire, as around plain stores and loads.
namespace oriel::kernels::host {

/// Instruction sets for which loops are compiled. On processors other than x86 only the first.
enum class Isa : std::uint8_t {
  baseline = 0,  ///< guaranteed by the compiler's target (x86-64: SSE2)
  avx2 = 1,      ///< AVX2, F16C
  avx512 = 2,    ///< AVX-512 F, BW, VL, DQ
};
inline constexpr int kIsaCount = 3;

/// Returns "baseline", "avx2" or "avx512".
const char* name_of(Isa isa);

/// Returns whether this build has loops for `isa`, and this processor and operating system can run
/// them.
bool is_available(Isa isa);

/// Returns the best available instruction set. Queries the processor once.
Isa detect_isa();

/// Largest number of sources, and of destinations, in one call.
inline constexpr int kMaxLoopArrays = 64;

/// Smallest message for which streaming stores were faster on the measured machine
/// (docs/notes/cpu.md). Such buffers are mostly in memory, and ordinary stores would fetch every
/// line of the destination before they overwrite it.
inline constexpr std::size_t kStreamingBytes = std::size_t{2} << 20;

struct ReduceLoopArgs {
  /// n_dsts (1 to 64) arrays of count elements; all receive the same values. Aligned to the
  /// element. Each destination either equals a source exactly, which is then reduced in place, or
  /// overlaps no source.
  std::byte* const* dsts = nullptr;
  int n_dsts = 0;
  /// n_srcs (1 to 64) arrays of count elements in rank order, the order of combination. Aligned to
  /// the element. They must not be written during the call, except as destinations.
  const std::byte* const* srcs = nullptr;
  int n_srcs = 0;
  /// Number of elements; 0 is allowed.
  std::size_t count = 0;
  /// Divisor of the average, at least 1; other operations ignore it.
  int n_ranks_for_avg = 1;
  /// premul_sum only: n_srcs entries of 8 bytes. Entry k begins with the scalar of source k, as an
  /// element. With one source the loop only scales, as a sender does. Receivers then use sum, or
  /// premul_sum with the scalar 1 for that source.
  const std::byte* scalars = nullptr;
  /// If true, and the alignments of the destinations agree, stores bypass the caches. The loop then
  /// ends with a store fence, so that a later release store publishes the data as usual.
  bool streaming = false;
};
using ReduceLoop = void (*)(const ReduceLoopArgs&);

/// Returns the loop that computes dst_j[i] = finish(fold(load(src_0[i]), load(src_1[i]), ...)) for
/// all i and j. Returns the baseline loop if this build lacks `isa`. The caller must pass an `isa`
/// for which is_available() is true. Returns null only if `type` or `op` is no valid value.
/// ReduceOp::sum of one u8 source copies it to all destinations.
ReduceLoop find_reduce_loop(DataType type, ReduceOp op, Isa isa);

/// Copies `bytes` bytes between arrays that are equal or do not overlap, with any alignment. If
/// `streaming`, stores bypass the caches and are fenced at the end, as above.
using CopyLoop = void (*)(std::byte* dst, const std::byte* src, std::size_t bytes, bool streaming);
CopyLoop find_copy_loop(Isa isa);

}  // namespace oriel::kernels::host
