// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/wait.hpp"
#include "oriel/types.hpp"

#include "kernels/plan/collective.hpp"
#include "kernels/plan/layout.hpp"

namespace oriel::kernels {

/// Marks a buffer that is in no window. Valid offsets are smaller: slots end at 64 TiB, the largest
/// ORIEL_BIG_SIZE.
inline constexpr std::uint32_t kOffsetBits = 46;
inline constexpr std::uint64_t kNoOffset = (std::uint64_t{1} << kOffsetBits) - 1;
inline constexpr std::uint32_t kSignatureBits = 64 - kOffsetBits;

/// Reports to the host why a call failed, other than by an abort or a timeout. A thread that
/// detects the failure writes both fields with one 8-byte release store. The memory is readable by
/// the host (pinned for a GPU).
struct alignas(8) CallFailure {
  std::uint32_t kind;  ///< FailureKind
  std::int32_t rank;   ///< the other rank: LSA index or world rank, see FailureKind
};
enum class FailureKind : std::uint32_t {
  none = 0,
  signature = 1,        ///< `rank` is an LSA index
  world_signature = 2,  ///< `rank` is a world rank
  unreadable = 3,       ///< the rendezvous read from world rank `rank` failed
};

/// Selects an operation of the kernel's family (see family.hpp).
struct FamilyOperation {
  bool average = false;
  bool scaled = false;
  bool maximum = false;
};

/// Parameters with which the stream algorithm moves the shares.
struct StreamFacts {
  std::uint32_t chunk_bytes = 0;  ///< a multiple of 128
  std::uint32_t depth = 0;        ///< slots of a ring: most chunks of a CTA in flight
  std::uint32_t lead = 0;         ///< chunks sent ahead of the one being reduced, below depth
  /// Owner of the first share. The next ranks to the right own the following shares, as far as
  /// there are shares.
  std::int32_t first_owner = 0;
  /// GPUs: owners read all inputs in place, if all ranks have registered buffers (stream.hpp). Only
  /// for inputs and shares aligned to 16 bytes, and calls that scale no inputs.
  bool reads_inputs = false;
  /// GPUs, reduce-scatter: inputs take both rings of a CTA, because no results pass through them.
  bool whole_rings = false;
  /// GPUs, all-gather and all-to-all: the last `own_groups` CTAs or sub-CTAs copy only the own
  /// block if all outputs are written in place. Each other one then sends `sent_part` of a block.
  std::uint32_t own_groups = 0;
  std::uint64_t sent_part = 0;
};

/// Arguments of an all-reduce, reduce or reduce-scatter, or of a broadcast, all-gather or
/// all-to-all in streams or lines. They are passed by value into the kernel, or to the CPU
/// function.
///
/// A reduce is an all-reduce of which only the root keeps the result. A reduce-scatter is the first
/// half of an all-reduce: each rank keeps the result of its share, which is its block.
///
/// Ranks here are indices in the LSA team. The fields that a small message needs come first,
/// because the GPU fetches parameters by cache lines.
struct AllReduceArguments {
  /// Not defaulted: a defaulted constructor zeroes the whole object first, which costs measurable
  /// time in a small call on the CPU.
  AllReduceArguments() {}  // NOLINT(modernize-use-equals-default)

  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::uint64_t count = 0;       ///< elements of the longer of the two buffers
  std::byte* scratch = nullptr;  ///< the scratch buffer of rank 0
  std::uint32_t stride_4g = 0;   ///< distance between consecutive slots, in units of 4 GiB
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::int32_t root = -1;  ///< root of a reduce or broadcast; -1: no root
  FamilyOperation operation;
  ScratchLayout layout;
  std::uint64_t share = 0;  ///< work per owner rank (see Split)
  std::uint64_t part = 0;   ///< work per CTA or sub-CTA within a share
  Collective collective = Collective::all_reduce;
  std::uint64_t block = 0;  ///< elements of a reduce-scatter's block; 0 for an all-reduce

  std::byte* flat_base = nullptr;  ///< address of slot 0, offset 0 of the LSA team's flat space
  /// Offsets of input and output in this rank's slot if they are in windows, else kNoOffset.
  std::uint64_t input_offset = kNoOffset;
  std::uint64_t output_offset = kNoOffset;
  StreamFacts stream;
  /// Hash of the call (see all_reduce_signature), below 2^kSignatureBits: equal if ranks agree.
  std::uint32_t signature = 0;

  /// This rank's scalar of a pre-multiplied sum: its bytes, or the address from which the device
  /// reads it.
  std::uint64_t scalar_bits = 0;
  const void* scalar_pointer = nullptr;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;

  device::WaitControl wait;
  CallFailure* failure = nullptr;

  ORIEL_DEVICE_FN bool is_root() const { return root == rank; }
  /// Returns whether this rank stores the result of a call that reduces.
  ORIEL_DEVICE_FN bool keeps_result() const { return root < 0 || is_root(); }
};

}  // namespace oriel::kernels
