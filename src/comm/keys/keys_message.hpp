// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "net/failover/path_agreement.hpp"

/// What ranks tell each other of the keys of their windows. Received messages are checked as a
/// whole; the errors do not know the rank.
namespace oriel::comm {

/// The allocation behind a window, which others may map: its size, where the window begins in it,
/// and its name. All 0 where there is none.
struct WindowSource {
  std::uint64_t memory_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t process = 0;
  std::uint64_t serial = 0;
  bool operator==(const WindowSource&) const = default;
};

/// Of a window, for the NICs of paths 1 and on.
using BackupKeys = std::array<std::uint32_t, net::kPathsMost - 1>;

/// A part of a window that has keys of its own, up to the next one or the window's end.
struct WindowPiece {
  std::uint64_t begin = 0;  ///< in the window
  std::uint32_t key = 0;
  BackupKeys backups{};  ///< as of WindowKey
  bool operator==(const WindowPiece&) const = default;
};

/// A window of one rank, as its NICs know it.
struct WindowKey {
  std::uint64_t number = 0;  ///< of the window: counts those of the communicator, the same on all
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t key = 0;  ///< of the whole window, or of its first piece
  WindowSource source;    ///< none if there are several pieces
  BackupKeys backups{};   ///< KeysMessage::backups of them
  std::vector<WindowPiece> later_pieces{};
  bool operator==(const WindowKey&) const = default;
};

/// The keys of a rank's windows, ascending by number.
struct KeysMessage {
  bool failed = false;  ///< this rank cannot go on; the rest is of no meaning
  bool direct = false;  ///< it can send and take descriptors of windows now, or has nobody near
  std::uint8_t backups = 0;  ///< NICs that it has besides the first one
  std::vector<WindowKey> keys;
  bool operator==(const KeysMessage&) const = default;
};
Bytes encode(const KeysMessage& message);
/// Refuses keys that are 0, windows that are empty, go round the end of the address space, do not
/// lie in their source, or are out of order; pieces that are out of order or end in the middle of a
/// page, and windows in pieces that have to be cut into more than kChunksMost chunks (cut_at()).
Result<KeysMessage> decode_keys(ByteView bytes);
/// Whether messages of so many bytes from each of so many ranks can be gathered. The error says
/// that there are too many allocations, for keys of other windows need far less.
Status check_room(std::size_t bytes, int ranks);

/// The error for a message that cannot be: "... has" what.
Error bad_message(const std::string& what);

}  // namespace oriel::comm
