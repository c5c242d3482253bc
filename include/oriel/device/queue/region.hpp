// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/work_entry.hpp"

/// Registered memory as operations see it, of this rank and of the peer alike.
namespace oriel::device::queue {

/// A window, or a part of one, that a NIC may reach: addresses without gaps, registered in chunks
/// of one power of two, each with a key of its own. Passed by value or kept in constant memory,
/// which is why only some keys stand in it.
struct Region {
  static constexpr std::uint32_t kKeysInside = 8;

  std::uint64_t address = 0;       ///< of its first byte, as the NIC knows it
  std::uint64_t bytes = 0;         ///< 0: nothing is registered
  std::uint32_t chunk_shift = 63;  ///< a chunk has 2^chunk_shift bytes; the first begins at skip
  std::uint32_t keys[kKeysInside] = {};
  std::uint64_t skip = 0;  ///< bytes of the first chunk before `address`; less than a chunk
  const std::uint32_t* more_keys = nullptr;  ///< from key kKeysInside on, in global memory

  [[nodiscard]] ORIEL_DEVICE_FN bool holds(std::uint64_t offset, std::uint64_t count) const {
    return offset <= bytes && count <= bytes - offset;
  }
  /// The key of the byte at `offset`, which lies in the region.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t key_at(std::uint64_t offset) const {
    const std::uint64_t chunk = (skip + offset) >> chunk_shift;
    return chunk < kKeysInside ? keys[chunk] : more_keys[chunk - kKeysInside];
  }
  /// The bytes from `offset` on that have the same key.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t left_in_chunk(std::uint64_t offset) const {
    const std::uint64_t chunk = std::uint64_t{1} << chunk_shift;
    return chunk - ((skip + offset) & (chunk - 1));
  }
  [[nodiscard]] ORIEL_DEVICE_FN RemoteAddress remote(std::uint64_t offset) const {
    return {address + offset, key_at(offset)};
  }
};

/// A stretch of two regions, and what of it one entry can move.
struct Transfer {
  const Region& local;
  std::uint64_t local_offset;
  const Region& remote;
  std::uint64_t remote_offset;
  std::uint64_t bytes;

  [[nodiscard]] ORIEL_DEVICE_FN bool is_inside() const {
    return local.holds(local_offset, bytes) && remote.holds(remote_offset, bytes);
  }
  /// The bytes of the piece that begins `done` bytes from the start: none crosses a chunk of either
  /// side.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t piece_at(std::uint64_t done) const {
    std::uint64_t most = kEntryBytesMost;
    const std::uint64_t here = local.left_in_chunk(local_offset + done);
    const std::uint64_t there = remote.left_in_chunk(remote_offset + done);
    if (here < most) most = here;
    if (there < most) most = there;
    if (bytes - done < most) most = bytes - done;
    return static_cast<std::uint32_t>(most);
  }
};

}  // namespace oriel::device::queue
