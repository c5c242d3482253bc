// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "oriel/device/network.hpp"
#include "oriel/error.hpp"

#include "boot/link/rank_group.hpp"
#include "comm/device/window_sink.hpp"
#include "comm/keys/direct_windows.hpp"
#include "comm/keys/key_tables.hpp"
#include "comm/keys/keys_message.hpp"
#include "comm/keys/nic_keys.hpp"
#include "comm/keys/window_nic.hpp"
#include "net/queue/memory_keys.hpp"
#include "shadow/shadow_pool.hpp"
#include "window/registration/participant.hpp"

namespace oriel::comm {

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
  /// `lsa_team`, by world rank, says who is reached without a NIC; the others as for KeyTables.
  NetworkWindows(boot::Group& world, int rank, std::vector<bool> lsa_team,
                 std::shared_ptr<shadow::ShadowPool> tables, KeyTables::Pools pools,
                 net::MemoryPlace place);
  NetworkWindows(const NetworkWindows&) = delete;
  NetworkWindows& operator=(const NetworkWindows&) = delete;

  Result<const device::NetworkWindow*> make_table(std::uint64_t serial) override;
  void drop_table(const device::NetworkWindow* table) noexcept override;

  /// Marks the window that will be registered at this address: only NICs change the words on which
  /// their atomics act.
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
  /// Has windows mapped among near peers from now on, as they are registered.
  void use_direct(DirectPath path);
  /// Maps the windows registered before use_direct(), if all ranks still have the same ones.
  /// Collective over the world. If all ranks agree that it succeeded, call use_earlier(), else
  /// detach().
  Task<Status> map_earlier(EventLoop& loop, Deadline deadline);
  void use_earlier() noexcept;
  /// The NIC goes; keys are given back and tables emptied.
  void detach() noexcept;

 private:
  /// A window, from make_table() to drop_table().
  struct Entry {
    std::uint64_t serial = 0;
    std::uint64_t number = 0;  // 0 until it is committed
    NicWindow nic;             // of 0 bytes until it is prepared, and once it is deregistered
    KeyTables::Table table;
    std::vector<shadow::OwnedShadow> more_keys;  // that the table names
    DirectWindow direct;
  };
  Entry* find(std::uint64_t serial);
  void revoke(Entry& entry) noexcept;
  WindowKey key_of(const Entry& entry, std::uint64_t number) const;
  Status fill(Entry& entry, std::uint64_t number, const std::vector<KeysMessage>& ranks);
  Status prepare_locally(std::span<const window::RegisteredWindow> windows, KeysMessage& mine);
  Status learn_pending(const std::vector<KeysMessage>& ranks);
  void export_earlier(KeysMessage& mine);
  void show_pending_reached() noexcept;
  Task<Status> exchange_windows(EventLoop& loop, std::vector<KeysMessage> ranks, Status local,
                                Deadline deadline);
  Status map_pending(const std::vector<KeysMessage>& ranks,
                     std::vector<std::vector<OwnedFd>> arrived);

  boot::Group& world_;
  const int rank_;
  const std::vector<bool> lsa_team_;

  std::mutex mutex_;  // guards all below
  KeyTables tables_;
  NicKeys keys_;
  DirectWindows direct_;
  std::map<std::uint64_t, std::unique_ptr<Entry>> entries_;        // by serial
  std::map<const device::NetworkWindow*, std::uint64_t> serials_;  // of their tables
  std::vector<std::uint64_t> pending_;  // serials, in the order of the batch
  std::uint64_t last_number_ = 0;
  const void* own_words_at_ = nullptr;
  std::uint64_t network_ = 0;
};

}  // namespace oriel::comm
