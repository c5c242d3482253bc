// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/keys/nic_keys.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::comm {

std::vector<KeyedPiece> local_pieces(const NicWindow& window) {
  std::vector<KeyedPiece> pieces;
  for (const NicWindow::Piece& piece : window.pieces) {
    pieces.push_back({piece.begin, piece.keys.local});
  }
  return pieces;
}

void NicKeys::attach(WindowNics nics, const NicView& process) {
  nics_ = std::move(nics);
  process_ = process;
}

/// Returns the offsets at which pieces of a window begin: each allocation if each needs its own
/// key, otherwise only 0.
Result<std::vector<std::uint64_t>> NicKeys::find_pieces(const NicWindow& window) const {
  std::vector<std::uint64_t> begins{0};
  if (nics_.memory == nullptr) return begins;
  const auto* const user = reinterpret_cast<const std::byte*>(window.address);
  ORIEL_TRY(const auto segments, nics_.memory->find_segments(user, window.bytes));
  for (std::size_t i = 1; i < segments.size(); ++i) {
    begins.push_back(reinterpret_cast<std::uint64_t>(segments[i].base) - window.address);
  }
  return begins;
}

/// Adds the piece to the window as soon as it has a key, so that remove() finds it after an error.
Status NicKeys::add_piece(NicWindow& window, std::uint64_t begin, std::uint64_t end) const {
  const std::uint64_t address = window.address + begin;
  net::MemoryRange range{address, end - begin, reinterpret_cast<std::byte*>(address),
                         kWindowAccess};
  range.place = place_;
  range.own_words = window.own_words;
  NicWindow::Piece piece;
  piece.begin = begin;
  ORIEL_TRY(piece.keys, first().register_memory(range));
  window.pieces.push_back(piece);
  NicWindow::Piece& made = window.pieces.back();
  for (std::size_t i = 1; i < nics_.ports.size(); ++i) {
    ORIEL_TRY(const WindowNic::Keys keys, nics_.ports[i]->register_memory(range));
    made.backups[i - 1] = keys.remote;
  }
  for (const auto& paths : nics_.paths) {
    for (const WindowNics::Path& path : paths) {
      if (path.own > 0) path.aliases->add_local(made.keys.local, made.backups[path.own - 1]);
    }
  }
  return {};
}

Status NicKeys::add(NicWindow& window) const {
  ORIEL_CHECK(show_window(process_, reinterpret_cast<const std::byte*>(window.address),
                          window.bytes, window.shown));
  ORIEL_TRY(const std::vector<std::uint64_t> begins, find_pieces(window));
  window.pieces.reserve(begins.size());
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const bool is_last = i + 1 == begins.size();
    Status added = add_piece(window, begins[i], is_last ? window.bytes : begins[i + 1]);
    if (added.ok()) continue;
    if (begins.size() == 1) return added;
    return std::move(added).error().with_context(
        fmt::format("at {} of a window of {} bytes, in allocation {} of {}", begins[i],
                    window.bytes, i + 1, begins.size()));
  }
  return {};
}

void NicKeys::remove(NicWindow& window) const noexcept {
  for (const NicWindow::Piece& piece : window.pieces) first().deregister_memory(piece.keys.local);
  remove_backups(window);
  hide_window(process_, window.shown);
  window.pieces.clear();
}

void NicKeys::remove_backups(NicWindow& window) const noexcept {
  for (const NicWindow::Piece& piece : window.pieces) {
    for (std::size_t i = 1; i < nics_.ports.size(); ++i) {
      const std::uint32_t key = piece.backups[i - 1];
      if (key != 0) nics_.ports[i]->deregister_memory(key);
    }
    for (const auto& paths : nics_.paths) {
      for (const WindowNics::Path& path : paths) path.aliases->remove_local(piece.keys.local);
    }
  }
  for (const auto& [rank, key] : window.far_keys) {
    for (const WindowNics::Path& path : nics_.paths[static_cast<std::size_t>(rank)]) {
      path.aliases->remove_remote(key);
    }
  }
  window.far_keys.clear();
}

WindowKey NicKeys::describe(const NicWindow& window, std::uint64_t number,
                            const WindowSource& source) const {
  const NicWindow::Piece& first = window.pieces.front();
  WindowKey key{number, window.address, window.bytes, first.keys.remote, source, first.backups};
  for (std::size_t i = 1; i < window.pieces.size(); ++i) {
    const NicWindow::Piece& piece = window.pieces[i];
    key.later_pieces.push_back({piece.begin, piece.keys.remote, piece.backups});
  }
  return key;
}

Status NicKeys::learn(NicWindow& window, int rank, const WindowKey& key,
                      std::uint8_t backups) const {
  if (nics_.paths.empty() || nics_.paths[static_cast<std::size_t>(rank)].empty()) return {};
  std::vector<WindowPiece> pieces{{0, key.key, key.backups}};
  pieces.insert(pieces.end(), key.later_pieces.begin(), key.later_pieces.end());
  for (const WindowPiece& piece : pieces) {
    ORIEL_CHECK(learn_piece(rank, key.number, piece, backups));
    window.far_keys.emplace_back(rank, piece.key);
  }
  return {};
}

Status NicKeys::learn_piece(int rank, std::uint64_t number, const WindowPiece& piece,
                            std::uint8_t backups) const {
  for (const WindowNics::Path& path : nics_.paths[static_cast<std::size_t>(rank)]) {
    if (path.far == 0) continue;
    if (path.far > backups || piece.backups[path.far - 1] == 0) {
      return Error(ErrorCode::remote, fmt::format("rank {} has sent no key of window {} for its "
                                                  "NIC {}",
                                                  rank, number, path.far))
          .with_origin(rank);
    }
    path.aliases->add_remote(piece.key, piece.backups[path.far - 1]);
  }
  return {};
}

}  // namespace oriel::comm
