// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/keys/keys_message.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/try.hpp"
#include "boot/link/frame.hpp"
#include "comm/keys/key_chunks.hpp"

namespace oriel::comm {
namespace {

constexpr std::size_t kKeyBytes = 7 * 8 + 2 * 4;
constexpr std::size_t kPieceBytes = 8 + 4;

void put_backups(ByteWriter& to, const KeysMessage& message, const BackupKeys& backups) {
  for (std::size_t i = 0; i < message.backups; ++i) to.put(backups[i]);
}

void put_keys(ByteWriter& to, const KeysMessage& message) {
  to.put(static_cast<std::uint8_t>(message.failed));
  to.put(static_cast<std::uint8_t>(message.direct));
  to.put(message.backups);
  to.put(static_cast<std::uint32_t>(message.keys.size()));
  for (const WindowKey& key : message.keys) {
    to.put(key.number).put(key.address).put(key.bytes).put(key.key);
    to.put(key.source.memory_bytes).put(key.source.offset);
    to.put(key.source.process).put(key.source.serial);
    put_backups(to, message, key.backups);
    to.put(static_cast<std::uint32_t>(key.later_pieces.size()));
    for (const WindowPiece& piece : key.later_pieces) {
      to.put(piece.begin).put(piece.key);
      put_backups(to, message, piece.backups);
    }
  }
}

/// Checks the pieces of a window that has several and is otherwise valid.
Status check_pieces(const WindowKey& key) {
  const auto refuse = [&](const std::string& what) {
    return bad_message(fmt::format("window {} of {} bytes {}", key.number, key.bytes, what));
  };
  if (key.bytes > kPieceBytesMost) return refuse("in pieces");
  if (key.source != WindowSource()) return refuse("in pieces and in one allocation");
  std::vector<std::uint64_t> ends;
  std::uint64_t before = 0;
  for (const WindowPiece& piece : key.later_pieces) {
    const bool is_behind = piece.begin > before && piece.begin < key.bytes;
    if (!is_behind || (key.address + piece.begin) % kPieceAlignment != 0) {
      return refuse(fmt::format("with a piece at {} behind one at {}", piece.begin, before));
    }
    if (piece.key == 0) return refuse(fmt::format("with the key 0 at {}", piece.begin));
    ends.push_back(before = piece.begin);
  }
  const KeyChunks chunks = cut_at(key.bytes, ends);
  if (chunks.count > kChunksMost) return refuse(fmt::format("in {} chunks", chunks.count));
  return {};
}

Status check_key(const WindowKey& key, std::uint64_t before) {
  if (key.number <= before)
    return bad_message(fmt::format("window {} behind {}", key.number, before));
  if (key.key == 0) return bad_message(fmt::format("the key 0 for window {}", key.number));
  if (key.bytes == 0 || key.bytes > ~std::uint64_t{0} - key.address) {
    return bad_message(
        fmt::format("window {} at {:#x} with {} bytes", key.number, key.address, key.bytes));
  }
  const WindowSource& source = key.source;
  const bool has_place =
      source.offset <= source.memory_bytes && key.bytes <= source.memory_bytes - source.offset;
  if (source != WindowSource() && !has_place) {
    return bad_message(fmt::format("window {} of {} bytes at {} of an allocation of {}", key.number,
                                   key.bytes, source.offset, source.memory_bytes));
  }
  return key.later_pieces.empty() ? Status() : check_pieces(key);
}

BackupKeys read_backups(ByteReader& from, std::size_t count) {
  BackupKeys backups{};
  for (std::size_t nic = 0; nic < count; ++nic) backups[nic] = from.get<std::uint32_t>();
  return backups;
}

Status read_pieces(ByteReader& from, std::size_t backups, WindowKey& key) {
  const auto count = from.get<std::uint32_t>();
  // Checks the count before allocating memory for the pieces.
  if (count > from.left() / (kPieceBytes + backups * sizeof(std::uint32_t))) {
    return bad_message(fmt::format("{} bytes, too few for {} pieces of window {}", from.left(),
                                   count, key.number));
  }
  key.later_pieces.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    WindowPiece piece;
    piece.begin = from.get<std::uint64_t>();
    piece.key = from.get<std::uint32_t>();
    piece.backups = read_backups(from, backups);
    key.later_pieces.push_back(piece);
  }
  return {};
}

Status read_keys(ByteReader& from, KeysMessage& message) {
  const auto failed = from.get<std::uint8_t>();
  const auto direct = from.get<std::uint8_t>();
  const auto backups = from.get<std::uint8_t>();
  const auto count = from.get<std::uint32_t>();
  if (failed > 1) return bad_message(fmt::format("a result of {}", failed));
  if (direct > 1) return bad_message(fmt::format("a readiness of {}", direct));
  if (backups >= net::kPathsMost) return bad_message(fmt::format("{} NICs", backups + 1));
  message.failed = failed == 1;
  message.direct = direct == 1;
  message.backups = backups;
  // Checks the count before allocating memory for the keys.
  if (count > from.left() / (kKeyBytes + backups * sizeof(std::uint32_t)))
    return bad_message(fmt::format("{} bytes, too few for {} windows", from.left(), count));
  std::uint64_t before = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    WindowKey key;
    key.number = from.get<std::uint64_t>();
    key.address = from.get<std::uint64_t>();
    key.bytes = from.get<std::uint64_t>();
    key.key = from.get<std::uint32_t>();
    key.source.memory_bytes = from.get<std::uint64_t>();
    key.source.offset = from.get<std::uint64_t>();
    key.source.process = from.get<std::uint64_t>();
    key.source.serial = from.get<std::uint64_t>();
    key.backups = read_backups(from, backups);
    ORIEL_CHECK(read_pieces(from, backups, key));
    ORIEL_CHECK(check_key(key, before));
    before = key.number;
    message.keys.push_back(std::move(key));
  }
  return {};
}

}  // namespace

Error bad_message(const std::string& what) {
  return Error(ErrorCode::remote, "a message about a rank's network has " + what);
}

Bytes encode(const KeysMessage& message) {
  ByteWriter to;
  put_keys(to, message);
  return to.take();
}

Result<KeysMessage> decode_keys(ByteView bytes) {
  ByteReader from(bytes);
  KeysMessage message;
  ORIEL_CHECK(read_keys(from, message));
  ORIEL_CHECK(from.finish("keys of windows"));
  return message;
}

Status check_message_bytes(std::size_t bytes, int ranks) {
  // One message of the all-gather carries the data of up to half the ranks.
  constexpr std::size_t kForEach = 16;
  const std::size_t together = divide_up(static_cast<std::size_t>(ranks), 2);
  const std::size_t most = boot::kMaxMessageBytes / together;
  if (bytes + kForEach <= most) return {};
  return Error(ErrorCode::invalid_argument,
               fmt::format("the keys of windows in many allocations take {} bytes; among {} ranks "
                           "the limit is {}",
                           bytes, ranks, most - std::min(most, kForEach)))
      .with_hint("make windows of fewer and larger allocations, or register fewer at once");
}

}  // namespace oriel::comm
