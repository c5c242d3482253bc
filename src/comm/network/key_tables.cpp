// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/key_tables.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/network/key_chunks.hpp"

namespace oriel::comm {
namespace {

// A power of two for each pool, and no smaller one: few pools, and little room that nobody uses.
constexpr std::size_t kLeastTableBytes = 256;

/// The key of each chunk.
std::vector<std::uint32_t> spread(std::span<const KeyedPiece> pieces, const KeyChunks& chunks) {
  std::vector<std::uint32_t> keys(chunks.count);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto at = [&](const KeyedPiece& piece) {
      return static_cast<std::ptrdiff_t>((chunks.skip + piece.begin) >> chunks.shift);
    };
    const auto end = i + 1 < pieces.size() ? keys.begin() + at(pieces[i + 1]) : keys.end();
    std::fill(keys.begin() + at(pieces[i]), end, pieces[i].key);
  }
  return keys;
}

}  // namespace

Result<device::queue::Region> KeyTables::make(std::uint64_t address, std::uint64_t bytes,
                                              std::span<const KeyedPiece> pieces,
                                              std::vector<shadow::OwnedShadow>& beyond) {
  using device::queue::Region;
  std::vector<std::uint64_t> ends;
  for (const KeyedPiece& piece : pieces.subspan(1)) ends.push_back(piece.begin);
  const KeyChunks chunks = cut_at(bytes, ends);
  if (chunks.count > kChunksMost) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a window of {} bytes in {} allocations has to be cut into {} chunks "
                             "of {} bytes; the limit is {}",
                             bytes, pieces.size(), chunks.count, std::uint64_t{1} << chunks.shift,
                             kChunksMost))
        .with_hint("make it of fewer and larger allocations");
  }
  Region region;
  region.address = address;
  region.bytes = bytes;
  region.chunk_shift = chunks.shift;
  region.skip = chunks.skip;
  const std::vector<std::uint32_t> keys = spread(pieces, chunks);
  const std::size_t inside = std::min<std::size_t>(keys.size(), Region::kKeysInside);
  std::copy_n(keys.begin(), inside, region.keys);
  if (inside == keys.size()) return region;

  const auto others = std::as_bytes(std::span(keys).subspan(inside));
  const std::size_t size = std::max(kLeastTableBytes, std::bit_ceil(others.size()));
  std::shared_ptr<shadow::ShadowPool>& pool = used_[size];
  if (pool == nullptr) {
    ORIEL_TRY(pool, pools_(size));
  }
  ORIEL_TRY(shadow::OwnedShadow table, shadow::OwnedShadow::make(pool, others));
  region.more_keys = static_cast<const std::uint32_t*>(table.get());
  beyond.push_back(std::move(table));
  return region;
}

}  // namespace oriel::comm
