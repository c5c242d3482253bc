// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace oriel::comm {

/// Division of a window whose pieces have separate keys into chunks, so that no chunk has two keys.
/// device::queue::Region has the same fields.
struct KeyChunks {
  std::uint32_t shift = 63;
  std::uint64_t skip = 0;
  std::uint64_t count = 1;
};

/// Alignment of the ends of pieces, except for the window's own ends.
inline constexpr std::uint64_t kPieceAlignment = 4096;
/// Limits of a window in pieces: its bytes and its chunks. Each chunk takes 4 bytes of a table.
inline constexpr std::uint64_t kPieceBytesMost = std::uint64_t{1} << 46;
inline constexpr std::uint64_t kChunksMost = std::uint64_t{1} << 20;

/// Returns the division with the fewest chunks such that every end of a piece is an end of a chunk.
/// `ends`: offsets inside the window, ascending, at distances that are multiples of
/// kPieceAlignment. The window has at most kPieceBytesMost.
inline KeyChunks cut_at(std::uint64_t bytes, std::span<const std::uint64_t> ends) {
  KeyChunks made;
  if (ends.empty()) return made;
  // Chunk boundaries are relative to the first end, so all distances from it must be multiples of
  // the chunk size. No chunk need be longer than the window.
  std::uint64_t apart = 0;
  for (const std::uint64_t end : ends) apart |= end - ends.front();
  const auto whole =
      static_cast<std::uint32_t>(std::bit_width(std::max(bytes, kPieceAlignment) - 1));
  made.shift =
      apart == 0 ? whole : std::min(whole, static_cast<std::uint32_t>(std::countr_zero(apart)));
  made.skip = (~ends.front() + 1) & ((std::uint64_t{1} << made.shift) - 1);
  made.count = ((made.skip + bytes - 1) >> made.shift) + 1;
  return made;
}

}  // namespace oriel::comm
