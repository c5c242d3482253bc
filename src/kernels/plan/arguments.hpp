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

/// "Not in a window", for the offsets below, which are smaller: slots end at 64 TiB, the largest
/// ORIEL_BIG_SIZE.
inline constexpr std::uint32_t kOffsetBits = 46;
inline constexpr std::uint64_t kNoOffset = (std::uint64_t{1} << kOffsetBits) - 1;
inline constexpr std::uint32_t kSignatureBits = 64 - kOffsetBits;

/// Why a call gave up, other than by an abort or a timeout: written by the first thread that sees
/// it into memory that the host reads (pinned for a GPU). `kind` last, with release.
struct alignas(8) CallFailure {
  std::uint32_t kind;  ///< FailureKind
  std::int32_t rank;   ///< of the other rank: its LSA index, or its world rank
};
enum class FailureKind : std::uint32_t {
  none = 0,
  signature = 1,        ///< `rank` is an LSA index
  world_signature = 2,  ///< `rank` is a world rank
  unreadable = 3,       ///< what the world rank `rank` has lent cannot be read
};

/// Which of its family's operations a kernel performs (see family.hpp).
struct FamilyOperation {
  bool average = false;
  bool scaled = false;
  bool maximum = false;
};

/// How the stream algorithm moves the shares.
struct StreamFacts {
  std::uint32_t chunk_bytes = 0;  ///< a multiple of 128
  std::uint32_t depth = 0;        ///< slots of its rings: chunks of a CTA on their way at once
  std::uint32_t lead = 0;         ///< chunks it sends ahead of the one it reduces, below depth
  /// The rank that owns the first share. Ranks to its right own the next ones, as far as there are
  /// shares.
  std::int32_t first_owner = 0;
};

/// All that an all-reduce, reduce, reduce-scatter or a streamed broadcast, all-gather or all-to-all
/// needs to run, passed by value into the kernel (or to the CPU's threads). A reduce is an
/// all-reduce of which the root alone keeps the result. A reduce-scatter is the first half of an
/// all-reduce: each owner keeps the result of its share, which is its block. Ranks here are indices
/// in the LSA team. The fields that a small message needs come first: the GPU fetches parameters by
/// cache lines.
struct AllReduceArguments {
  /// Not defaulted, or the compiler clears all of it first, which a small call on the CPU notices.
  AllReduceArguments() {}  // NOLINT(modernize-use-equals-default)

  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::uint64_t count = 0;       ///< elements of the longer buffer
  std::byte* scratch = nullptr;  ///< the scratch buffer of rank 0
  std::uint32_t stride_4g = 0;   ///< distance of two slots, in units of 4 GiB
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::int32_t root = -1;  ///< of a reduce or a broadcast; -1: there is none
  FamilyOperation operation;
  ScratchLayout layout;
  std::uint64_t share = 0;  ///< of the work, per rank (see Split)
  std::uint64_t part = 0;   ///< of a share, per CTA or sub-CTA
  Collective collective = Collective::all_reduce;
  std::uint64_t block = 0;  ///< elements of a reduce-scatter's block; 0 for an all-reduce

  std::byte* flat_base = nullptr;  ///< of the LSA team's addresses: slot 0, offset 0
  /// Where input and output lie in this rank's slot, if they are registered.
  std::uint64_t input_offset = kNoOffset;
  std::uint64_t output_offset = kNoOffset;
  StreamFacts stream;
  /// Hash of type, operation, count and algorithm, below 2^kSignatureBits: equal if ranks agree.
  std::uint32_t signature = 0;

  /// This rank's scalar of a pre-multiplied sum: its bytes, or where the device reads them.
  std::uint64_t scalar_bits = 0;
  const void* scalar_pointer = nullptr;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;

  device::WaitControl wait;
  CallFailure* failure = nullptr;

  ORIEL_DEVICE_FN bool is_root() const { return root == rank; }
  /// Of what reduces.
  ORIEL_DEVICE_FN bool keeps_result() const { return root < 0 || is_root(); }
};

}  // namespace oriel::kernels
