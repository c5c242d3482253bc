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

/// Messages in which ranks exchange the keys of their windows. Each received message is checked
/// completely; errors do not name the rank.
namespace oriel::comm {

/// Allocation behind a window that other ranks may map: its size, the window's offset in it, and
/// its ID. All 0 if there is none.
struct WindowSource {
  std::uint64_t memory_bytes = 0;
  std::uint64_t offset = 0;
  std::uint64_t process = 0;
  std::uint64_t serial = 0;
  bool operator==(const WindowSource&) const = default;
};

/// Keys of a window or piece at a rank's NICs other than the first.
using BackupKeys = std::array<std::uint32_t, net::kPathsMost - 1>;

/// Part of a window with its own keys; it extends to the next part or the window's end.
struct WindowPiece {
  std::uint64_t begin = 0;  ///< offset in the window
  std::uint32_t key = 0;
  BackupKeys backups{};  ///< like WindowKey::backups
  bool operator==(const WindowPiece&) const = default;
};

/// Window of one rank as registered with its NICs.
struct WindowKey {
  std::uint64_t number = 0;  ///< number of the window, or position in a batch; from 1
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t key = 0;  ///< key of the whole window, or of its first piece
  WindowSource source;    ///< empty if there are several pieces
  BackupKeys backups{};   ///< the first KeysMessage::backups entries are valid
  std::vector<WindowPiece> later_pieces{};
  bool operator==(const WindowKey&) const = default;
};

/// Keys of a rank's windows, ascending by number.
struct KeysMessage {
  bool failed = false;       ///< this rank cannot continue; the rest is meaningless
  bool direct = false;       ///< can exchange window descriptors now, or has no near peer
  std::uint8_t backups = 0;  ///< number of NICs besides the first one
  std::vector<WindowKey> keys;
  bool operator==(const KeysMessage&) const = default;
};
Bytes encode(const KeysMessage& message);
/// Refuses keys of first NICs that are 0, but not backup keys. Refuses windows that are empty, wrap
/// around the end of the address space, exceed their source, or are out of order. Refuses pieces
/// that are out of order or end inside a page. Refuses windows in pieces that need more than
/// kChunksMost chunks (cut_at()).
Result<KeysMessage> decode_keys(ByteView bytes);
/// Checks that an all-gather can carry messages of `bytes` bytes from each of `ranks` ranks. The
/// error blames many allocations, since keys of other windows need far fewer bytes.
Status check_message_bytes(std::size_t bytes, int ranks);

/// Returns the error for an invalid message: "... has `what`".
Error bad_message(const std::string& what);

}  // namespace oriel::comm
