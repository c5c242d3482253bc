// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/keys/key_tables.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "comm/keys/key_chunks.hpp"

namespace oriel::comm {
namespace {

// Smallest object size. Sizes are powers of two from this one, which limits both the number of
// pools and unused memory.
constexpr std::size_t kLeastTableBytes = 256;

/// Returns the key of each chunk.
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

std::size_t KeyTables::table_bytes(int world_size) {
  return sizeof(device::NetworkWindow) +
         std::bit_ceil(static_cast<std::size_t>(world_size)) * sizeof(device::queue::Region);
}

Result<KeyTables::Table> KeyTables::allocate() const {
  ORIEL_TRY(void* const table, tables_->allocate({}));
  return Table(table, Free{tables_});
}

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

Status KeyTables::write(const Table& table, device::NetworkWindow head,
                        std::span<const device::queue::Region> peers) const {
  head.peers = reinterpret_cast<const device::queue::Region*>(
      static_cast<const std::byte*>(table.get()) + sizeof head);
  ORIEL_CHECK(tables_->write(table.get(), sizeof head, std::as_bytes(peers)));
  ORIEL_CHECK(tables_->write(table.get(), 0, std::as_bytes(std::span(&head, 1))));
  return tables_->flush();
}

void KeyTables::clear_number(const Table& table) const noexcept {
  if (place_ == net::MemoryPlace::host) {  // objects in host memory have no separate copy
    auto& number = static_cast<device::NetworkWindow*>(table.get())->network;
    std::atomic_ref<std::uint64_t>(number).store(0, std::memory_order_relaxed);
    return;
  }
  const std::uint64_t none = 0;
  static_cast<void>(tables_->write(table.get(), offsetof(device::NetworkWindow, network),
                                   std::as_bytes(std::span(&none, 1))));
  static_cast<void>(tables_->flush());
}

}  // namespace oriel::comm
