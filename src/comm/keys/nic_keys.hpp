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

/// Memory of a window, and its keys at the NICs.
struct NicWindow {
  struct Piece {
    std::uint64_t begin = 0;
    WindowNic::Keys keys;  ///< keys at the first NIC
    BackupKeys backups{};  ///< keys at the other NICs
  };
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  bool own_words = false;
  std::vector<Piece> pieces;  ///< a single piece if the window has one key; empty without a NIC
  std::vector<std::pair<int, std::uint32_t>> far_keys;  ///< rank and rkey, for keys with
                                                        ///< aliases
  std::vector<const std::byte*> shown;                  ///< allocations exported to the NIC's
                                                        ///< process
};
/// Returns the pieces of a window with this rank's lkeys.
std::vector<KeyedPiece> local_pieces(const NicWindow& window);

/// Registers windows with the NICs of a rank. Adds aliases of the keys of both ends for paths that
/// do not join the first NICs. One thread at a time.
class NicKeys {
 public:
  explicit NicKeys(net::MemoryPlace place) : place_(place) {}
  void attach(WindowNics nics, const NicView& process);
  void detach() { attach({}, {}); }
  bool has_nic() const { return !nics_.ports.empty(); }
  /// Returns the first NIC, whose keys are in WQEs.
  WindowNic& first() const { return *nics_.ports.front(); }
  const NicView& process() const { return process_; }
  net::MemoryPlace place() const { return place_; }
  /// Returns the value for KeysMessage::backups.
  std::uint8_t backups() const {
    return has_nic() ? static_cast<std::uint8_t>(nics_.ports.size() - 1) : 0;
  }

  /// Registers the window with every NIC. After an error call remove().
  Status add(NicWindow& window) const;
  void remove(NicWindow& window) const noexcept;
  /// Returns the message to other ranks about a window that has been added.
  WindowKey describe(const NicWindow& window, std::uint64_t number,
                     const WindowSource& source) const;
  /// Adds the aliases of the keys of another rank's window on the other paths to that rank.
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
