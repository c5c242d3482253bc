// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "oriel/device/network.hpp"
#include "oriel/error.hpp"

#include "boot/link/rank_group.hpp"
#include "comm/device/window_sink.hpp"
#include "comm/network/key_tables.hpp"
#include "comm/network/network_mapping.hpp"
#include "comm/network/network_message.hpp"
#include "net/queue/key_aliases.hpp"
#include "net/queue/memory_keys.hpp"
#include "shadow/shadow_pool.hpp"
#include "window/registration/participant.hpp"

namespace oriel::comm {

/// One of a rank's NICs as its windows need it. Any thread.
class WindowNic {
 public:
  /// What entries of this rank call the memory, and those of other ranks. Neither is 0.
  struct Keys {
    std::uint32_t local = 0;
    std::uint32_t remote = 0;
  };
  virtual ~WindowNic() = default;
  virtual Result<Keys> register_memory(const net::MemoryRange& range) = 0;
  virtual void deregister_memory(std::uint32_t local_key) noexcept = 0;

  // Of NICs that copy from memory of near peers that is mapped here (NetworkWindows::use_direct):
  // as the functions of NicSoft. Others are never asked.
  virtual Status map_peer_memory(std::uint64_t peer, std::uint32_t key,
                                 const net::MemoryRange& range);
  virtual void unmap_peer_memory(std::uint64_t /*peer*/, std::uint32_t /*key*/) noexcept {}
  virtual void set_reached(std::uint64_t /*peer*/, std::uint32_t /*key*/) noexcept {}
};

/// The NICs of a rank as its windows see them. Outlived by the NICs, until detach().
struct WindowNics {
  std::vector<WindowNic*> ports;
  /// Whose allocations have a key of their own each, in windows of several: for NICs that register
  /// no range across two. Null: a window has one key.
  window::Memory* memory = nullptr;
  /// What the keys of a path's ends are called there, which are those of these NICs of both ranks:
  /// others than the first ones, whose keys stand in entries.
  struct Path {
    net::KeyAliases* aliases = nullptr;
    std::size_t own = 0;
    std::size_t far = 0;
  };
  /// By world rank. Empty where no rank has any.
  std::vector<std::vector<Path>> paths;
};

/// The keys of a communicator's windows: registers each with the rank's NICs and keeps the tables
/// from which kernels take the keys of all ranks, those of their first NICs. Where there is no NIC
/// yet it only remembers the windows, of which attach() then makes up for.
///
/// The tables are objects of a pool of the rank's device: a NetworkWindow, and behind it the
/// regions of all ranks. Keys that have no room in a region are in objects of other pools, as long
/// as the table that names them.
///
/// Windows are known to all ranks by a number, which counts those that were committed: ranks may
/// deregister in any order, and one that has done so before the network came has no key there.
/// Thread safety: as window::Participant asks for, tables and keys by any thread.
class NetworkWindows final : public window::Participant, public NetworkTables {
 public:
  /// `lsa_team`, by world rank, says who is reached without a NIC. `tables` holds objects of
  /// table_bytes(), those of `pools` keys; `place` is where windows lie.
  NetworkWindows(boot::Group& world, int rank, std::vector<bool> lsa_team,
                 std::shared_ptr<shadow::ShadowPool> tables, KeyTables::Pools pools,
                 net::MemoryPlace place);
  ~NetworkWindows() override;
  NetworkWindows(const NetworkWindows&) = delete;
  NetworkWindows& operator=(const NetworkWindows&) = delete;

  static std::size_t table_bytes(int world_size);

  Result<const device::NetworkWindow*> make_table(std::uint64_t serial) override;
  void drop_table(const device::NetworkWindow* table) noexcept override;

  /// Of the window that is to be registered at this address: NICs alone change the words of it on
  /// which their atomics act.
  void expect_own_words(const void* address);

  Task<Status> prepare(EventLoop& loop, std::span<const window::RegisteredWindow> windows,
                       Deadline deadline) override;
  void commit() noexcept override;
  void rollback() noexcept override;
  void deregister(std::uint64_t serial) noexcept override;

  /// A NIC is there: registers the windows that are committed. The keys are for the other ranks;
  /// learn() takes theirs. `number` is NetworkView::number. After an error: detach().
  Result<KeysMessage> attach(WindowNics nics, std::uint64_t number, const NicView& process);
  /// The keys of all ranks, by world rank, as they have sent them. The error names the rank whose
  /// windows are not those of this rank.
  Status learn(const std::vector<KeysMessage>& ranks);
  /// From now on windows of near peers are mapped here as they are registered, and theirs there.
  void use_direct(DirectPath path);
  /// The same for those that were there before, if all ranks still have the same ones. Collective
  /// over the world; once all ranks have agreed that it went well, use_earlier(), else detach().
  Task<Status> map_earlier(EventLoop& loop, Deadline deadline);
  void use_earlier() noexcept;
  /// The NIC goes; keys are given back and tables emptied.
  void detach() noexcept;

 private:
  /// A window, from make_table() to drop_table().
  struct Entry {
    std::uint64_t serial = 0;
    std::uint64_t number = 0;  // 0 until it is committed
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;  // 0 until it is prepared, and once it is deregistered
    struct Piece {
      std::uint64_t begin = 0;
      WindowNic::Keys keys;  // of the first NIC
      BackupKeys backups{};  // and of the others
    };
    std::vector<Piece> pieces;  // one if it has one key, none if there is no NIC
    std::vector<std::pair<int, std::uint32_t>> far_keys;  // of ranks, that have aliases
    std::vector<const std::byte*> shown;                  // allocations, to the NIC's process
    void* table = nullptr;                                // of tables_
    std::vector<shadow::OwnedShadow> more_keys;           // that the table names
    bool own_words = false;
    WindowExport exported;                                        // until its peers have it
    std::map<int, std::pair<std::uint32_t, PeerMapping>> mapped;  // of peers, with their keys
    bool is_reached = false;                                      // those have mapped this rank's
  };
  Entry* find(std::uint64_t serial);
  Result<std::vector<std::uint64_t>> find_pieces(const Entry& entry) const;
  Status add_piece(Entry& entry, std::uint64_t begin, std::uint64_t end);
  Status add_keys(Entry& entry);
  WindowKey key_of(const Entry& entry, std::uint64_t number) const;
  Status learn_aliases(Entry& entry, int rank, const WindowKey& key, std::uint8_t backups);
  Status learn_alias(Entry& entry, int rank, std::uint64_t number, const WindowPiece& piece,
                     std::uint8_t backups);
  void revoke(Entry& entry) noexcept;
  void clear_number(Entry& entry) noexcept;
  void revoke_backups(Entry& entry) noexcept;
  std::uint8_t backups() const {
    return nic_ == nullptr ? 0 : static_cast<std::uint8_t>(nics_.ports.size() - 1);
  }
  Status write_table(const Entry& entry, const device::NetworkWindow& head,
                     std::span<const device::queue::Region> peers);
  Status find_peers(Entry& entry, std::uint64_t number, const std::vector<KeysMessage>& ranks,
                    std::vector<device::queue::Region>& peers);
  Status fill(Entry& entry, std::uint64_t number, const std::vector<KeysMessage>& ranks);
  Status prepare_locally(std::span<const window::RegisteredWindow> windows, KeysMessage& mine);
  Status decode(const std::vector<Bytes>& messages, std::size_t windows,
                std::vector<KeysMessage>& ranks);
  Status learn_pending(const std::vector<KeysMessage>& ranks);
  void export_earlier(KeysMessage& mine);
  void show_pending_reached() noexcept;
  Task<Status> exchange_windows(EventLoop& loop, std::vector<KeysMessage> ranks, Status local,
                                Deadline deadline);
  Status export_pending(std::vector<std::vector<OwnedFd>>& outgoing);
  Status map_pending(const std::vector<KeysMessage>& ranks,
                     std::vector<std::vector<OwnedFd>> arrived);

  boot::Group& world_;
  const int rank_;
  const std::vector<bool> lsa_team_;
  const std::shared_ptr<shadow::ShadowPool> tables_;
  const net::MemoryPlace place_;

  std::mutex mutex_;  // guards all below
  KeyTables key_tables_;
  std::map<std::uint64_t, std::unique_ptr<Entry>> entries_;        // by serial
  std::map<const device::NetworkWindow*, std::uint64_t> serials_;  // of their tables
  std::vector<std::uint64_t> pending_;  // serials, in the order of the batch
  std::uint64_t last_number_ = 0;
  const void* own_words_at_ = nullptr;
  WindowNic* nic_ = nullptr;  // the first of nics_
  WindowNics nics_;
  std::uint64_t network_ = 0;
  NicView process_;
  std::optional<DirectPath> direct_;
};

}  // namespace oriel::comm
