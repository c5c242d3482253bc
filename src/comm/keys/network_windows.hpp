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

namespace oriel::test {
class NetworkInside;
}

namespace oriel::comm {

/// Registers a communicator's windows with the rank's NICs. Keeps the tables from which kernels
/// read the keys of all ranks for their first NICs. Before a NIC exists it only records the
/// windows; attach() then registers them.
///
/// The tables are objects of a pool of the rank's device: a NetworkWindow followed by the regions
/// of all ranks. Keys that do not fit into a region are in objects of other pools, which live as
/// long as the table that refers to them.
///
/// All ranks identify a window by its number, the count of committed windows: ranks may deregister
/// in any order. A rank that deregistered a window before the network existed has no key for it.
/// Thread safety: any thread. Only one prepare() or map_earlier() may be in progress.
class NetworkWindows final : public window::Participant, public NetworkTables {
 public:
  /// `lsa_team`, by world rank, is set for ranks that are reached without a NIC. For the other
  /// parameters see KeyTables.
  NetworkWindows(boot::Group& world, int rank, std::vector<bool> lsa_team,
                 std::shared_ptr<shadow::ShadowPool> tables, KeyTables::Pools pools,
                 net::MemoryPlace place);
  NetworkWindows(const NetworkWindows&) = delete;
  NetworkWindows& operator=(const NetworkWindows&) = delete;

  Result<const device::NetworkWindow*> make_table(std::uint64_t serial) override;
  void drop_table(const device::NetworkWindow* table) noexcept override;

  Task<Status> prepare(EventLoop& loop, std::span<const window::RegisteredWindow> windows,
                       Deadline deadline) override;
  void commit() noexcept override;
  void rollback() noexcept override;
  void deregister(std::uint64_t serial) noexcept override;

  /// Registers the committed windows with the NICs and returns their keys for the other ranks.
  /// learn() takes the keys of all ranks. `number` is NetworkView::number. After an error call
  /// detach().
  Result<KeysMessage> attach(WindowNics nics, std::uint64_t number, const NicView& process);
  /// Takes the keys of all ranks, by world rank, as received. The error names the rank whose
  /// windows differ from those of this rank.
  Status learn(const std::vector<KeysMessage>& ranks);
  /// Maps windows among near peers from now on, when they are registered.
  void use_direct(DirectPath path);
  /// Maps the windows registered before use_direct(), if all ranks still have the same ones.
  /// Collective over the world. If all ranks agree that it succeeded, call use_earlier(), otherwise
  /// detach().
  Task<Status> map_earlier(EventLoop& loop, Deadline deadline);
  void use_earlier() noexcept;
  /// Deregisters all windows from the NICs, clears the network's number in the tables, and drops
  /// the NICs.
  void detach() noexcept;

 private:
  friend class OwnWords;
  friend class oriel::test::NetworkInside;
  /// State of a window from make_table() to drop_table().
  struct Entry {
    std::uint64_t serial = 0;
    std::uint64_t number = 0;  // 0 until the window is committed
    NicWindow nic;             // 0 bytes until prepared and after deregistration
    KeyTables::Table table;
    std::vector<shadow::OwnedShadow> more_keys;  // keys to which the table refers
    DirectWindow direct;
  };
  void expect_own_words(const void* address);
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

  std::mutex mutex_;  // guards all below, except tables_.allocate() and exchanges by direct_
  KeyTables tables_;
  NicKeys keys_;
  DirectWindows direct_;
  std::map<std::uint64_t, std::unique_ptr<Entry>> entries_;        // by serial
  std::map<const device::NetworkWindow*, std::uint64_t> serials_;  // serial by table
  std::vector<std::uint64_t> pending_;  // serials of the current batch, in order
  std::uint64_t last_number_ = 0;
  const void* own_words_at_ = nullptr;
  std::uint64_t network_ = 0;
};

/// While it exists, marks the window that will be registered at `memory`: only NICs modify the
/// words on which their atomics act. Does nothing if `windows` is null. Ends before `windows` does.
class OwnWords {
 public:
  OwnWords(NetworkWindows* windows, const void* memory) : windows_(windows) {
    if (windows_ != nullptr) windows_->expect_own_words(memory);
  }
  // Removes the mark, because later memory at this address may belong to someone else.
  ~OwnWords() {
    if (windows_ != nullptr) windows_->expect_own_words(nullptr);
  }
  OwnWords(const OwnWords&) = delete;
  OwnWords& operator=(const OwnWords&) = delete;

 private:
  NetworkWindows* windows_;
};

}  // namespace oriel::comm
