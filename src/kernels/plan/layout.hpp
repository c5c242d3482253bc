// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"

#include "kernels/plan/algorithm.hpp"

/// Lays out the scratch memory of a communicator. Each rank has one buffer, of the same size on all
/// ranks. The buffers are registered as a window when the communicator starts, so every rank can
/// write into every other rank's buffer.
namespace oriel::kernels {

/// Offsets in bytes from the start of the scratch buffer; the same on all ranks of an LSA team.
///
/// Each CTA index is an independent channel: CTA b of one rank exchanges data only with CTA b of
/// the others. It has its own counters, flags, line slots and rings. So calls may use different
/// numbers of CTAs without synchronisation between CTAs. In the stream algorithm each sub-CTA of a
/// GPU has its own index, with flags, handshake slots, rings and counters.
struct ScratchLayout {
  static constexpr std::uint64_t doorbell = 0;  ///< device::Doorbell: wakes the rank's CPU thread
  static constexpr std::uint64_t call_record = 64;     ///< CPU ranks only: CallRecord
  static constexpr std::uint64_t reading_probe = 128;  ///< CPU ranks only: ReadingProbe
  static constexpr std::uint64_t activity = 144;       ///< CPU ranks only: the rank's CallActivity
  static constexpr std::uint64_t read_permission = 152;  ///< CPU ranks only: ReadPermission

  std::uint32_t epochs = 0;  ///< per CTA: CtaCounters
  // The fields of the line algorithms are 32 bits wide, because a GPU multiplies 64-bit numbers
  // slowly. Products and quotients are precomputed.
  std::uint32_t lines = 0;         ///< per parity and CTA: `line_bytes` of packet slots
  std::uint32_t line_bytes = 0;    ///< per CTA and parity
  std::uint32_t parity_bytes = 0;  ///< per parity, all CTAs together
  /// Bytes that each source has of `line_bytes` for each slot of a line. [0]: one slot per line
  /// (one-shot, and the one trip of a reduce-scatter); [1]: two slots (two-shot).
  std::uint32_t source_bytes[2] = {};
  std::int32_t max_ctas = 1;
  std::int32_t sub_ctas = 1;  ///< largest number of sub-CTAs of a CTA
  std::int32_t ranks = 1;
  /// GPUs: most CTAs of a call that copy only the rank's own block (own_ctas_among()).
  std::int32_t own_ctas = 0;
  /// CPU ranks only: kEagerBytes of cache lines per parity, `eager_source_bytes` of them per
  /// source. They share no slot with the packets, because a packet's payload could look like a
  /// flag.
  std::uint32_t eager = 0;
  std::uint32_t eager_source_bytes = 0;
  std::uint64_t flags = 0;       ///< per CTA and source rank: one u32 in a sector of its own
  std::uint64_t handshakes = 0;  ///< per CTA, parity, source: handshake (StreamHandshake)
  std::uint64_t signatures = 0;  ///< per parity and source rank: signature of its call; GPUs only
  std::uint64_t rings = 0;  ///< per CTA: `ring_bytes` of plain slots, input ring then output ring
  std::uint64_t ring_bytes = 0;
  /// The budget, or more if the parts before the rings exceed it.
  std::uint64_t total_bytes = 0;
};

/// Probe with which CPU ranks test whether they can read each other's memory outside windows.
struct ReadingProbe {
  std::uint64_t address;  ///< address of a word in the memory of the rank's process
  std::uint64_t token;    ///< value of that word, different on each rank
};

/// Number of CTAs that a GPU kernel has after the CTAs that move data (see signatures.cuh).
inline constexpr std::uint32_t kSignatureCtas = 1;

/// Spacing of words that different writers store: two 32-byte sectors of a GPU, or one cache line
/// of a CPU.
inline constexpr std::uint64_t kSectorBytes = 64;

/// Counters of one CTA index on this communicator, equal on all ranks between calls. They live in
/// device memory, so that a replayed graph continues where the last call ended.
struct alignas(kSectorBytes) CtaCounters {
  std::uint32_t line_epoch;   ///< calls of packet algorithms
  std::uint32_t chunk;        ///< chunks that the stream algorithm has moved
  std::uint32_t step;         ///< steps of the stream algorithm: the value of its flags
  std::uint32_t handshakes;   ///< calls of the stream algorithm (epoch of its handshake)
  std::uint64_t eager_calls;  ///< calls of the eager algorithm
  std::uint32_t signature;    ///< GPUs, CTA 0 only: calls that exchanged signatures
};

/// Number of slots for each pair of ranks. Two suffice if in every call each rank waits for data
/// from every other rank. A rank that starts call k + 2 has finished call k + 1. For call k + 1 it
/// needed data that every other rank sent after finishing call k.
inline constexpr std::uint64_t kParities = 2;

inline constexpr std::uint64_t kHelloBytes = 64;

/// Size of a slot of the packet algorithms.
inline constexpr std::size_t kLineBytes = 16;

/// Lines of the eager algorithm are cache lines, with a flag of 8 bytes. A parity has room for
/// messages of 56 KiB between two ranks, of 6 KiB among 10 and of 896 B among 64.
inline constexpr std::size_t kEagerLineBytes = 64;
inline constexpr std::size_t kEagerPayloadBytes = kEagerLineBytes - sizeof(std::uint64_t);
inline constexpr std::size_t kEagerBytes = 64 << 10;

/// The two rings of a CTA: other ranks' inputs to this rank's share, and their results for this
/// rank.
enum class Ring : std::uint8_t { input, output };

/// Returns the index of rank `source` among the ranks - 1 slots that rank `owner` keeps for the
/// others.
ORIEL_DEVICE_FN constexpr std::uint32_t slot_of(int source, int owner, int ranks) {
  const int distance = source - owner - 1;
  return static_cast<std::uint32_t>(distance < 0 ? distance + ranks : distance);
}

/// Returns the most CTAs of a GPU that copy only the rank's own block in an all-gather or
/// all-to-all, while the others send. A CTA that does both sends less. On an H200 a CTA copies 48
/// GB/s, and the links carry 350 GB/s, which are 350 / (ranks - 1) for each block
/// (docs/notes/exchanges.md).
constexpr int own_ctas_among(int ranks) {
  constexpr int kCtasOfLinks = 8;  // copy as much as the links carry
  return ranks > 1 ? (kCtasOfLinks + ranks - 2) / (ranks - 1) : 0;
}

/// Divides `budget_bytes` among the parts. After the parts of fixed size, a fifth of the rest is
/// for the line slots and what remains is for the rings.
ScratchLayout make_scratch_layout(Backend backend, int ranks, int max_ctas,
                                  std::uint64_t budget_bytes);

/// Returns the largest chunk of the stream algorithm with `depth` slots in each ring.
constexpr std::uint64_t max_chunk_bytes(const ScratchLayout& layout, std::uint32_t depth) {
  const auto sources = static_cast<std::uint64_t>(layout.ranks > 1 ? layout.ranks - 1 : 1);
  return layout.ring_bytes / (2 * depth * sources) / 128 * 128;
}

}  // namespace oriel::kernels
