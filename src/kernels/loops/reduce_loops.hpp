// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/types.hpp"

/// The inner loops of reductions among CPU ranks: element-wise over several source arrays that this
/// process has mapped, vectorised for the processor found at run time. Every loop gives the bits of
/// oriel::device::Reduction folded by oriel::device::TreeFold, whatever the instruction set, count,
/// alignment, rounding mode or flush-to-zero mode of the calling thread (on x86).
///
/// Thread safety: the loops keep no state; distinct threads may work on disjoint destinations.
/// Nothing here blocks, allocates or synchronises with other ranks: the caller orders its flags
/// around a call with release and acquire as around plain stores and loads.
namespace oriel::kernels::host {

/// Instruction sets for which loops are compiled. On processors other than x86 only the first.
enum class Isa : std::uint8_t {
  baseline = 0,  ///< what the compiler's target guarantees (x86-64: SSE2)
  avx2 = 1,      ///< AVX2, F16C
  avx512 = 2,    ///< AVX-512 F, BW, VL, DQ
};
inline constexpr int kIsaCount = 3;

/// "baseline", "avx2", "avx512".
const char* name_of(Isa isa);

/// True if this build holds loops for it and this processor and operating system run them.
bool is_available(Isa isa);

/// The best available one. Asks the processor once.
Isa detect_isa();

/// At most so many sources and destinations in one call.
inline constexpr int kMaxLoopArrays = 64;

/// From so many bytes of a message on, streaming stores won on the machine where this was measured
/// (docs/performance.md): buffers then mostly are in memory, and ordinary stores would fetch every
/// line of the destination before they overwrite it.
inline constexpr std::size_t kStreamingBytes = std::size_t{2} << 20;

struct ReduceLoopArgs {
  /// n_dsts (1 to 64) arrays of count elements; all receive the same values. Aligned to the
  /// element. Each may equal a source exactly, which then is reduced in place, or overlap no source
  /// at all.
  std::byte* const* dsts = nullptr;
  int n_dsts = 0;
  /// n_srcs (1 to 64) arrays of count elements in rank order, the order of combination. Aligned to
  /// the element. Nobody may write them during the call.
  const std::byte* const* srcs = nullptr;
  int n_srcs = 0;
  /// Elements, 0 allowed.
  std::size_t count = 0;
  /// Divisor of the average, at least 1; other operations ignore it.
  int n_ranks_for_avg = 1;
  /// premul_sum only: n_srcs entries of 8 bytes, each beginning with source k's scalar as an
  /// element. With one source this is the scaling that a sender does; receivers then use sum.
  const std::byte* scalars = nullptr;
  /// Stores bypass the caches where the destinations' alignments agree. The loop ends with a store
  /// fence, so that a release store that follows publishes them as usual.
  bool streaming = false;
};
using ReduceLoop = void (*)(const ReduceLoopArgs&);

/// dst_j[i] = finish(fold(load(src_0[i]), load(src_1[i]), ...)) for all i and j. Falls back to the
/// baseline where this build lacks `isa`; the caller passes one that is_available. Null only for a
/// value that is no data type or operation. ReduceOp::sum of one u8 source is a copy to many.
ReduceLoop find_reduce_loop(DataType type, ReduceOp op, Isa isa);

/// Copies `bytes` bytes between arrays that are equal or do not overlap, any alignment. Streaming
/// stores bypass the caches and are fenced at the end, as above.
using CopyLoop = void (*)(std::byte* dst, const std::byte* src, std::size_t bytes, bool streaming);
CopyLoop find_copy_loop(Isa isa);

}  // namespace oriel::kernels::host
