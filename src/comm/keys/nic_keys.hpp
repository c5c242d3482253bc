// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

#include "comm/keys/direct_windows.hpp"
#include "comm/keys/key_tables.hpp"
#include "comm/keys/keys_message.hpp"
#include "comm/keys/window_nic.hpp"
#include "net/queue/memory_keys.hpp"

namespace oriel::comm {

/// The memory of a window, and the keys that NICs have for it.
struct NicWindow {
  struct Piece {
    std::uint64_t begin = 0;
    WindowNic::Keys keys;  ///< of the first NIC
    BackupKeys backups{};  ///< and of the others
  };
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  bool own_words = false;
  std::vector<Piece> pieces;  ///< one if it has one key, none if there is no NIC
  std::vector<std::pair<int, std::uint32_t>> far_keys;  ///< of ranks, that have aliases
  std::vector<const std::byte*> shown;                  ///< allocations, to the NIC's process
};
/// The pieces of a window with the keys by which this rank names them.
std::vector<KeyedPiece> local_pieces(const NicWindow& window);

/// Registers windows with the NICs of a rank, and has those of backup paths know what the keys of
/// both ends are called there. One thread at a time.
class NicKeys {
 public:
  explicit NicKeys(net::MemoryPlace place) : place_(place) {}
  void attach(WindowNics nics, const NicView& process);
  void detach() { attach({}, {}); }
  bool has_nic() const { return !nics_.ports.empty(); }
  /// The one whose keys stand in entries.
  WindowNic& first() const { return *nics_.ports.front(); }
  const NicView& process() const { return process_; }
  net::MemoryPlace place() const { return place_; }
  /// KeysMessage::backups.
  std::uint8_t backups() const {
    return has_nic() ? static_cast<std::uint8_t>(nics_.ports.size() - 1) : 0;
  }

  /// With every NIC. After an error: remove().
  Status add(NicWindow& window) const;
  void remove(NicWindow& window) const noexcept;
  /// Returns what other ranks are sent about a window that has been added.
  WindowKey describe(const NicWindow& window, std::uint64_t number,
                     const WindowSource& source) const;
  /// Notes what the keys of a rank's window are called on the other paths to it.
  Status learn(NicWindow& window, int rank, const WindowKey& key, std::uint8_t backups) const;

 private:
  Result<std::vector<std::uint64_t>> find_pieces(const NicWindow& window) const;
  Status add_piece(NicWindow& window, std::uint64_t begin, std::uint64_t end) const;
  Status learn_piece(int rank, std::uint64_t number, const WindowPiece& piece,
                     std::uint8_t backups) const;
  void remove_backups(NicWindow& window) const noexcept;

  const net::MemoryPlace place_;
  WindowNics nics_;
  NicView process_;
};

}  // namespace oriel::comm
