// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace oriel::comm {

/// How a window whose pieces have keys of their own is cut, so that no chunk has two keys:
/// device::queue::Region has the same fields.
struct KeyChunks {
  std::uint32_t shift = 63;
  std::uint64_t skip = 0;
  std::uint64_t count = 1;
};

/// Pieces begin and end at multiples of this, but for the window's own ends.
inline constexpr std::uint64_t kPieceAlignment = 4096;
/// No window that is in pieces has more bytes, or is cut into more chunks: each takes 4 bytes of a
/// table.
inline constexpr std::uint64_t kPieceBytesMost = std::uint64_t{1} << 46;
inline constexpr std::uint64_t kChunksMost = std::uint64_t{1} << 20;

/// The fewest chunks that end wherever a piece ends. `ends`: offsets in the window, ascending,
/// inside it and apart by multiples of kPieceAlignment. The window has at most kPieceBytesMost.
inline KeyChunks cut_at(std::uint64_t bytes, std::span<const std::uint64_t> ends) {
  KeyChunks made;
  if (ends.empty()) return made;
  // Chunks count from the first end on, so what all ends have to be multiples of is how far they
  // are from it. No chunk need be longer than the window.
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
