// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"

#include "kernels/plan/algorithm.hpp"

/// Where things lie in the scratch memory of a communicator: one buffer per rank, the same size on
/// all of them, registered as a window when the communicator starts, so that every rank writes into
/// every other one's.
namespace oriel::kernels {

/// Offsets in bytes from the start of the scratch buffer; the same on all ranks of a communicator.
///
/// Every CTA index is a little communicator of its own: CTA b of one rank exchanges data with CTA b
/// of the others only, and owns its epoch words, flags, line slots and rings. Calls may therefore
/// use different numbers of CTAs without any agreement between CTAs. In the stream algorithm a
/// sub-CTA of a GPU has such an index of its own, with flags, hellos, rings and counters.
struct ScratchLayout {
  static constexpr std::uint64_t doorbell = 0;  ///< device::Doorbell: wakes the rank's CPU thread
  static constexpr std::uint64_t call_record = 64;     ///< CPU ranks only: CallRecord
  static constexpr std::uint64_t reading_probe = 128;  ///< CPU ranks only: ReadingProbe
  static constexpr std::uint64_t activity = 144;       ///< CPU ranks only: a word, what it is in
  static constexpr std::uint64_t lending = 152;        ///< CPU ranks only: Lending (exchange.hpp)

  std::uint32_t epochs = 0;  ///< per CTA: CtaCounters
  // What the line algorithms use is 32 bits wide, because a GPU multiplies 64 bits slowly, and in
  // products and quotients ready made.
  std::uint32_t lines = 0;         ///< per parity and CTA: `line_bytes` of packet slots
  std::uint32_t line_bytes = 0;    ///< of one CTA and parity
  std::uint32_t parity_bytes = 0;  ///< of all CTAs
  /// What of `line_bytes` each source has for each of its slots per line: with one slot (one-shot)
  /// or two (two-shot).
  std::uint32_t lane_bytes[2] = {};
  std::int32_t max_ctas = 1;
  std::int32_t sub_ctas = 1;  ///< the most of a CTA
  std::int32_t ranks = 1;
  /// CPU ranks only: kEagerBytes of cache lines per parity, `eager_lane_bytes` of them for each
  /// source. They share no slot with the packets, whose payload could look like a flag.
  std::uint32_t eager = 0;
  std::uint32_t eager_lane_bytes = 0;
  std::uint64_t flags = 0;  ///< per CTA and source rank: one u32 in a sector of its own
  std::uint64_t hellos =
      0;  ///< per CTA, parity and source rank: a greeting of the stream algorithm
  std::uint64_t signatures = 0;  ///< per parity and source rank: which call it is in; GPUs only
  std::uint64_t rings = 0;  ///< per CTA: `ring_bytes` of plain slots, input ring then output ring
  std::uint64_t ring_bytes = 0;
  /// The budget: 1 MiB, the least that ORIEL_SCRATCH_SIZE can be, has room for all but the rings of
  /// any team that may start.
  std::uint64_t total_bytes = 0;
};

/// By which CPU ranks find out whether they can read each other's memory outside windows.
struct ReadingProbe {
  std::uint64_t address;  ///< of a word in the memory of the rank's process
  std::uint64_t token;    ///< which that word holds
};

/// Of a GPU's kernel: CTAs behind those that move data (see signatures.cuh).
inline constexpr std::uint32_t kSignatureCtas = 1;

/// A 32-byte sector of a GPU's memory system; half a cache line of a CPU, where two CTAs of one
/// rank do not run at once.
inline constexpr std::uint64_t kSectorBytes = 64;

/// Counts of what a CTA index has done on this communicator; equal on all ranks between calls. They
/// live in device memory, so that a replayed graph goes on where the last call ended.
struct alignas(kSectorBytes) CtaCounters {
  std::uint32_t line_epoch;   ///< calls of packet algorithms
  std::uint32_t chunk;        ///< chunks that the stream algorithm has moved
  std::uint32_t step;         ///< steps of the stream algorithm: the value of its flags
  std::uint32_t greeting;     ///< calls of the stream algorithm
  std::uint64_t eager_calls;  ///< calls of the eager algorithm
  std::uint32_t signature;    ///< of GPUs' CTA 0: calls of any algorithm
};

/// Two slots for each pair of ranks suffice: a rank that begins call k + 2 has finished call k + 1,
/// for which it needed data that every other rank sent after it had finished call k. This holds for
/// algorithms in which each rank waits for data from every other rank in every call.
inline constexpr std::uint64_t kParities = 2;

inline constexpr std::uint64_t kHelloBytes = 64;

/// A slot of the packet algorithms.
inline constexpr std::size_t kLineBytes = 16;

/// Lines of the eager algorithm are cache lines, 8 bytes of which are a flag. A parity has room for
/// messages of 56 KiB between two ranks, of 6 KiB among 10 and of 896 B among 64.
inline constexpr std::size_t kEagerLineBytes = 64;
inline constexpr std::size_t kEagerPayloadBytes = kEagerLineBytes - sizeof(std::uint64_t);
inline constexpr std::size_t kEagerBytes = 64 << 10;

/// The two rings of a CTA: other ranks' inputs to its share, and their results.
enum class Ring : std::uint8_t { input, output };

/// The slot of rank `source` among the ranks - 1 slots that rank `owner` keeps for the others.
ORIEL_DEVICE_FN constexpr std::uint32_t slot_of(int source, int owner, int ranks) {
  const int distance = source - owner - 1;
  return static_cast<std::uint32_t>(distance < 0 ? distance + ranks : distance);
}

/// Divides `budget_bytes` among the parts: a fifth for the line slots, the rest for the rings.
ScratchLayout make_scratch_layout(Backend backend, int ranks, int max_ctas,
                                  std::uint64_t budget_bytes);

/// Largest chunk of the stream algorithm with `depth` slots in each ring.
constexpr std::uint64_t max_chunk_bytes(const ScratchLayout& layout, std::uint32_t depth) {
  const auto sources = static_cast<std::uint64_t>(layout.ranks > 1 ? layout.ranks - 1 : 1);
  return layout.ring_bytes / (2 * depth * sources) / 128 * 128;
}

}  // namespace oriel::kernels
