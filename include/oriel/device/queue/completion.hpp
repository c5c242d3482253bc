// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/wqe.hpp"

/// Completions of a NIC. A send queue uses one element of its completion queue. Every completion
/// overwrites it ("collapsed"). A queue completes in order, so the last completion shows the NIC's
/// progress. Receives have a separate completion queue, whose elements are filled in turn
/// (immediates.hpp). Layout of mlx5's 64-byte CQE; source: rdma-core's mlx5dv.h. All functions only
/// compute: any thread may call them, they do not block and access no memory.
///
/// Example: returns the number of completed WQEBBs, from a tail that was loaded in acquire order.
/// ```cpp
/// namespace dq = oriel::device::queue;
/// ORIEL_DEVICE_FN std::uint64_t completed_now(std::uint64_t tail_word, std::uint64_t known,
///                                             std::uint32_t depth) {
///   const dq::CompletionTail tail = dq::decode_tail(tail_word);
///   if (tail.kind != dq::CompletionKind::request) return known;  // an error, or nothing so far
///   return dq::completed_wqebbs(known, tail.index, depth);
/// }
/// ```
namespace oriel::device::queue {

/// Big-endian, as WQEs are. The NIC writes the tail last, and the `own` byte last within the tail.
struct alignas(64) Completion {
  std::uint8_t unused[36];     ///< fields that are not read here
  std::uint32_t immediate;     ///< word of a received immediate
  std::uint8_t unused_too[4];  ///< not read either
  std::uint32_t bytes;         ///< number of bytes of the write with that immediate
  std::uint64_t status;        ///< timestamp; after an error its last two bytes hold the syndromes
  std::uint64_t tail;          ///< opcode and queue (4 bytes), index (2), signature (1), own (1)
};
static_assert(sizeof(Completion) == 64);

/// Syndrome of a WQE that was not executed because an earlier WQE failed.
inline constexpr std::uint8_t kFlushed = 0x05;

/// Opcodes of mlx5 CQEs.
enum class CompletionKind : std::uint8_t {
  request = 0,             ///< a WQE of this queue
  received_immediate = 1,  ///< a peer's write with an immediate
  request_error = 13,      ///< a WQE of this queue has failed
  response_error = 14,     ///< the queue has failed, and this receive was flushed
  invalid = 15,            ///< content of a fresh element, all ones
};

/// Decoded fields of `Completion::tail`.
struct CompletionTail {
  CompletionKind kind = CompletionKind::invalid;  ///< upper half of `own`
  std::uint8_t opcode = 0;                        ///< opcode of the WQE
  std::uint32_t queue = 0;                        ///< the NIC's queue number, 24 bits
  std::uint16_t index = 0;  ///< low bits of the index of the WQE's first WQEBB
};

/// Decodes `Completion::tail`. Ignores the signature and the bit of `own` that distinguishes
/// rounds.
constexpr ORIEL_DEVICE_FN CompletionTail decode_tail(std::uint64_t tail) {
  const std::uint64_t value = big_endian(tail);
  return {static_cast<CompletionKind>((value >> 4) & 0xfu), static_cast<std::uint8_t>(value >> 56),
          static_cast<std::uint32_t>(value >> 32) & 0xffffffu,
          static_cast<std::uint16_t>(value >> 16)};
}

/// Returns the kind in a tail of a queue whose elements are filled in turn. `odd` selects the
/// current round. Returns `invalid` if the tail is still that of the previous round. Rounds count
/// from 0; the lowest bit of `own` distinguishes two successive rounds.
constexpr ORIEL_DEVICE_FN CompletionKind kind_in_round(std::uint64_t tail, bool odd) {
  const std::uint64_t own = big_endian(tail) & 0xffu;
  return (own & 1u) == (odd ? 1u : 0u) ? static_cast<CompletionKind>(own >> 4)
                                       : CompletionKind::invalid;
}

/// Encodes `Completion::tail`, with a signature of 0 and for an even round.
constexpr ORIEL_DEVICE_FN std::uint64_t encode_tail(const CompletionTail& tail) {
  return big_endian(static_cast<std::uint64_t>(tail.opcode) << 56 |
                    static_cast<std::uint64_t>(tail.queue & 0xffffffu) << 32 |
                    static_cast<std::uint64_t>(tail.index) << 16 |
                    static_cast<std::uint64_t>(tail.kind) << 4);
}

/// Syndromes in `Completion::status` of a completion with an error.
struct Syndromes {
  std::uint8_t vendor = 0;    ///< detail in the vendor's own code
  std::uint8_t syndrome = 0;  ///< reason of the error
};
/// Decodes `Completion::status` of a completion with an error.
constexpr ORIEL_DEVICE_FN Syndromes decode_syndromes(std::uint64_t status) {
  const std::uint64_t value = big_endian(status);
  return {static_cast<std::uint8_t>(value >> 8), static_cast<std::uint8_t>(value)};
}
/// Encodes `Completion::status` of a completion with an error.
constexpr ORIEL_DEVICE_FN std::uint64_t encode_syndromes(const Syndromes& syndromes) {
  return big_endian(static_cast<std::uint64_t>(syndromes.vendor) << 8 | syndromes.syndrome);
}

/// Returns the number of completed WQEBBs. `known` WQEBBs were complete before the element was
/// read, and at most `depth` more can have completed since. The WQE at `index` is the last
/// completed one and takes one WQEBB, so index + 1 WQEBBs are complete. If the element is older or
/// cannot be placed, returns `known`. This can happen if much time passes after `known` was read;
/// the next poll begins with a fresh value.
/// Correct for every depth up to 32768. An element may be newer by a multiple of 65536 WQEBBs after
/// a pause of that length. The result is then too small, never too large.
constexpr ORIEL_DEVICE_FN std::uint64_t completed_wqebbs(std::uint64_t known, std::uint16_t index,
                                                         std::uint32_t depth) {
  const std::uint16_t more =
      static_cast<std::uint16_t>(index + 1u - static_cast<std::uint16_t>(known));
  return more <= depth ? known + more : known;
}

/// Reason for the failure of a queue, encoded as one word; 0 means no failure.
struct QueueError {
  std::uint8_t syndrome = 0;         ///< CQE syndrome: 0x13 is "remote access", 0x05 "flushed"
  std::uint8_t vendor_syndrome = 0;  ///< detail in the vendor's own code
  std::uint8_t opcode = 0;           ///< opcode of the WQE that failed
  std::uint16_t index = 0;           ///< low bits of its index
};

/// Encodes an error as a word, which is never 0: bit 63 is set.
constexpr ORIEL_DEVICE_FN std::uint64_t encode_error(const QueueError& error) {
  return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(error.syndrome) << 32 |
         static_cast<std::uint64_t>(error.vendor_syndrome) << 24 |
         static_cast<std::uint64_t>(error.opcode) << 16 | error.index;
}
/// Decodes a word of encode_error.
constexpr ORIEL_DEVICE_FN QueueError decode_error(std::uint64_t word) {
  return {static_cast<std::uint8_t>(word >> 32), static_cast<std::uint8_t>(word >> 24),
          static_cast<std::uint8_t>(word >> 16), static_cast<std::uint16_t>(word)};
}

}  // namespace oriel::device::queue
