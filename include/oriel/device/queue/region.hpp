// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/wqe.hpp"

/// Registered memory of this rank or of the peer, as operations use it. All functions are local and
/// do not block, and any thread may call them. No function orders memory: each reads only what the
/// host wrote before.
///
/// Example: returns the number of WQEs that a transfer needs, or 0 if it leaves a region.
/// ```cpp
/// ORIEL_DEVICE_FN std::uint32_t pieces_of(const oriel::device::queue::Transfer& transfer) {
///   if (!transfer.is_inside()) return 0;
///   std::uint32_t pieces = 0;
///   for (std::uint64_t done = 0; done < transfer.bytes; done += transfer.piece_at(done)) ++pieces;
///   return pieces;
/// }
/// ```
namespace oriel::device::queue {

/// A window, or part of a window, that a NIC may access. Addresses have no gaps and are registered
/// in chunks of one power of two. Each chunk has a key, and several chunks may have equal keys. The
/// keys are lkeys in a region of this rank, and rkeys in a region of the peer. The structure has a
/// constant size, so it contains only the first keys. Offsets are in bytes.
struct Region {
  static constexpr std::uint32_t kKeysInside = 8;  ///< number of keys in the structure

  std::uint64_t address = 0;             ///< address of the first byte, as the NIC knows it
  std::uint64_t bytes = 0;               ///< 0: nothing is registered
  std::uint32_t chunk_shift = 63;        ///< a chunk has 2^chunk_shift bytes; see `skip`
  std::uint32_t keys[kKeysInside] = {};  ///< keys of the first chunks
  std::uint64_t skip = 0;  ///< bytes of the first chunk before `address`; less than a chunk
  const std::uint32_t* more_keys = nullptr;  ///< keys from number kKeysInside on, in global memory

  /// Returns whether `count` bytes at `offset` lie in the region. An empty range may also begin at
  /// its end.
  [[nodiscard]] ORIEL_DEVICE_FN bool holds(std::uint64_t offset, std::uint64_t count) const {
    return offset <= bytes && count <= bytes - offset;
  }
  /// Returns the key (lkey or rkey) of the byte at `offset`, which lies in the region.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t key_at(std::uint64_t offset) const {
    const std::uint64_t chunk = (skip + offset) >> chunk_shift;
    return chunk < kKeysInside ? keys[chunk] : more_keys[chunk - kKeysInside];
  }
  /// Returns the number of bytes from `offset` to the end of its chunk, which may lie beyond the
  /// region.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t left_in_chunk(std::uint64_t offset) const {
    const std::uint64_t chunk = std::uint64_t{1} << chunk_shift;
    return chunk - ((skip + offset) & (chunk - 1));
  }
  /// Returns the address and rkey of the byte at `offset`, which lies in this region of the peer.
  [[nodiscard]] ORIEL_DEVICE_FN RemoteAddress remote(std::uint64_t offset) const {
    return {address + offset, key_at(offset)};
  }
};

/// Ranges of equal size in two regions, and their division into pieces that one WQE can move. The
/// regions must outlive the object.
struct Transfer {
  const Region& local;          ///< memory of this rank
  std::uint64_t local_offset;   ///< begin of the range in `local`, in bytes
  const Region& remote;         ///< memory of the peer
  std::uint64_t remote_offset;  ///< begin of the range in `remote`, in bytes
  std::uint64_t bytes;          ///< size of each range

  /// Returns whether both ranges lie in their regions.
  [[nodiscard]] ORIEL_DEVICE_FN bool is_inside() const {
    return local.holds(local_offset, bytes) && remote.holds(remote_offset, bytes);
  }
  /// Returns the size of the piece that begins `done` bytes after the start: at most kWqeBytesMost,
  /// and not 0 before the end. No piece crosses a chunk boundary of either side.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t piece_at(std::uint64_t done) const {
    std::uint64_t most = kWqeBytesMost;
    const std::uint64_t here = local.left_in_chunk(local_offset + done);
    const std::uint64_t there = remote.left_in_chunk(remote_offset + done);
    if (here < most) most = here;
    if (there < most) most = there;
    if (bytes - done < most) most = bytes - done;
    return static_cast<std::uint32_t>(most);
  }
};

}  // namespace oriel::device::queue
