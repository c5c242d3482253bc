// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/keys/network_windows.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::comm {
namespace {

/// Returns the pieces of a window from a rank's message.
std::vector<KeyedPiece> pieces_of(const WindowKey& key) {
  std::vector<KeyedPiece> pieces{{0, key.key}};
  for (const WindowPiece& piece : key.later_pieces) pieces.push_back({piece.begin, piece.key});
  return pieces;
}

/// Decodes the messages of all ranks about a batch of windows.
Status decode(const std::vector<Bytes>& messages, std::size_t windows,
              std::vector<KeysMessage>& ranks) {
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    auto decoded = decode_keys(messages[rank]);
    if (!decoded.ok()) return std::move(decoded).error().with_origin(static_cast<int>(rank));
    if (!decoded->failed && decoded->keys.size() != windows) {
      return Error(ErrorCode::remote, fmt::format("rank {} has sent {} keys for {} windows", rank,
                                                  decoded->keys.size(), windows))
          .with_origin(static_cast<int>(rank));
    }
    ranks.push_back(std::move(decoded).value());
  }
  return {};
}

bool same_windows(const KeysMessage& a, const KeysMessage& b) {
  return std::equal(
      a.keys.begin(), a.keys.end(), b.keys.begin(), b.keys.end(),
      [](const WindowKey& one, const WindowKey& other) { return one.number == other.number; });
}

}  // namespace

NetworkWindows::NetworkWindows(boot::Group& world, int rank, std::vector<bool> lsa_team,
                               std::shared_ptr<shadow::ShadowPool> tables, KeyTables::Pools pools,
                               net::MemoryPlace place)
    : world_(world),
      rank_(rank),
      lsa_team_(std::move(lsa_team)),
      tables_(std::move(tables), std::move(pools), place),
      keys_(place) {}

Result<const device::NetworkWindow*> NetworkWindows::make_table(std::uint64_t serial) {
  auto entry = std::make_unique<Entry>();
  entry->serial = serial;
  ORIEL_TRY(entry->table, tables_.allocate());
  const auto* const table = static_cast<const device::NetworkWindow*>(entry->table.get());
  const std::lock_guard lock(mutex_);
  entries_.emplace(serial, std::move(entry));
  serials_.emplace(table, serial);
  return table;
}

void NetworkWindows::expect_own_words(const void* address) {
  const std::lock_guard lock(mutex_);
  own_words_at_ = address;
}

void NetworkWindows::drop_table(const device::NetworkWindow* table) noexcept {
  const std::lock_guard lock(mutex_);
  const auto serial = serials_.find(table);
  if (serial == serials_.end()) return;
  const auto entry = entries_.find(serial->second);
  revoke(*entry->second);
  entries_.erase(entry);
  serials_.erase(serial);
}

NetworkWindows::Entry* NetworkWindows::find(std::uint64_t serial) {
  const auto found = entries_.find(serial);
  return found == entries_.end() ? nullptr : found->second.get();
}

void NetworkWindows::revoke(Entry& entry) noexcept {
  if (!entry.nic.pieces.empty()) {
    tables_.clear_number(entry.table);
    DirectWindows::unmap(entry.direct, keys_.first());
  }
  keys_.remove(entry.nic);
}

WindowKey NetworkWindows::key_of(const Entry& entry, std::uint64_t number) const {
  return keys_.describe(entry.nic, number, entry.direct.exported.source);
}

/// Fills the table with the regions of this rank and of those outside its LSA team that have the
/// window. Kernels read the table only after they have received the window or the network.
Status NetworkWindows::fill(Entry& entry, std::uint64_t number,
                            const std::vector<KeysMessage>& ranks) {
  // Keeps the keys of a previous network until the table refers to new ones, or until this function
  // fails.
  const std::vector<shadow::OwnedShadow> earlier = std::exchange(entry.more_keys, {});
  std::vector<device::queue::Region> peers(ranks.size());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (lsa_team_[rank]) continue;
    const auto& keys = ranks[rank].keys;
    const auto found =
        std::lower_bound(keys.begin(), keys.end(), number,
                         [](const WindowKey& key, std::uint64_t at) { return key.number < at; });
    if (found == keys.end() || found->number != number) continue;
    if (found->bytes != entry.nic.bytes) {
      return Error(ErrorCode::remote,
                   fmt::format("rank {} has a window of {} bytes where rank {} has one of {}", rank,
                               found->bytes, rank_, entry.nic.bytes))
          .with_origin(static_cast<int>(rank));
    }
    ORIEL_TRY(peers[rank],
              tables_.make(found->address, found->bytes, pieces_of(*found), entry.more_keys));
    ORIEL_CHECK(keys_.learn(entry.nic, static_cast<int>(rank), *found, ranks[rank].backups));
  }
  device::NetworkWindow head;
  ORIEL_TRY(head.local, tables_.make(entry.nic.address, entry.nic.bytes, local_pieces(entry.nic),
                                     entry.more_keys));
  head.network = network_;
  return tables_.write(entry.table, head, peers);
}

Status NetworkWindows::prepare_locally(std::span<const window::RegisteredWindow> windows,
                                       KeysMessage& mine) {
  mine.direct = direct_.is_ready();
  mine.backups = keys_.backups();
  std::uint64_t place = 0;
  for (const window::RegisteredWindow& window : windows) {
    Entry* const entry = find(window.serial);
    if (entry == nullptr) {
      return Error(ErrorCode::internal, fmt::format("window {} has no table", window.serial));
    }
    pending_.push_back(window.serial);
    entry->nic.address = reinterpret_cast<std::uint64_t>(window.user);
    entry->nic.bytes = window.bytes;
    entry->nic.own_words = window.user == own_words_at_;
    if (!keys_.has_nic()) continue;
    ORIEL_CHECK(keys_.add(entry->nic));
    if (mine.direct) direct_.make_export(entry->direct, entry->nic.address, window.bytes);
    // Within the batch, windows are numbered by their positions from 1.
    mine.keys.push_back(key_of(*entry, ++place));
  }
  return {};
}

Status NetworkWindows::learn_pending(const std::vector<KeysMessage>& ranks) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Entry* const entry = find(pending_[i]);
    if (entry != nullptr) ORIEL_CHECK(fill(*entry, i + 1, ranks));
  }
  return {};
}

Status NetworkWindows::map_pending(const std::vector<KeysMessage>& ranks,
                                   std::vector<std::vector<OwnedFd>> arrived) {
  const std::lock_guard lock(mutex_);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto peer = static_cast<int>(rank);
    if (!direct_.is_near(peer)) continue;
    auto descriptor = arrived[rank].begin();
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      const WindowKey& key = ranks[rank].keys[i];
      if (key.source.memory_bytes == 0) continue;
      OwnedFd own = std::move(*descriptor++);
      Entry* const entry = find(pending_[i]);
      if (entry == nullptr) continue;
      ORIEL_CHECK(direct_.map(entry->direct, peer, key, std::move(own), keys_.first(),
                              keys_.process(), keys_.place()));
    }
  }
  return {};
}

/// Exchanges the descriptors of the windows that are being registered, among ranks that can map
/// each other's memory.
Task<Status> NetworkWindows::exchange_windows(EventLoop& loop, std::vector<KeysMessage> ranks,
                                              Status local, Deadline deadline) {
  if (!direct_.has_peers()) co_return local;
  std::vector<std::vector<OwnedFd>> outgoing(ranks.size());
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint64_t serial : pending_) {
      Entry* const entry = find(serial);
      if (local.ok() && entry != nullptr) local = direct_.add_descriptors(entry->direct, outgoing);
    }
  }
  ORIEL_CO_TRY(auto arrived, co_await direct_.exchange(loop, std::move(outgoing), ranks,
                                                       std::move(local), deadline));
  co_return map_pending(ranks, std::move(arrived));
}

Task<Status> NetworkWindows::prepare(EventLoop& loop,
                                     std::span<const window::RegisteredWindow> windows,
                                     Deadline deadline) {
  KeysMessage mine;
  Status local;
  bool has_nic = false;
  {
    const std::lock_guard lock(mutex_);
    pending_.clear();
    has_nic = keys_.has_nic();
    local = prepare_locally(windows, mine);
  }
  if (has_nic) {
    Bytes message = encode(mine);
    if (local.ok()) local = check_message_bytes(message.size(), world_.size());
    if (!local.ok()) {
      mine.failed = true;
      mine.keys.clear();
      message = encode(mine);
    }
    auto gathered = co_await world_.all_gather(boot::Operation::network, std::move(message));
    std::vector<KeysMessage> ranks;
    Status decoded = gathered.ok() ? decode(gathered.value(), windows.size(), ranks)
                                   : Status(std::move(gathered).error());
    if (local.ok()) local = std::move(decoded);
    // Leaves the reason of a failed rank to the agreement that follows.
    const auto any = [&](bool KeysMessage::*flag, bool value) {
      return std::any_of(ranks.begin(), ranks.end(),
                         [&](const KeysMessage& one) { return one.*flag == value; });
    };
    const bool all_well = !any(&KeysMessage::failed, true);
    if (local.ok() && all_well) local = learn_pending(ranks);
    if (all_well && !any(&KeysMessage::direct, false) && !ranks.empty()) {
      local = co_await exchange_windows(loop, std::move(ranks), std::move(local), deadline);
    }
  }
  if (!local.ok()) rollback();
  co_return local;
}

void NetworkWindows::commit() noexcept {
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t serial : pending_) {
    Entry* const entry = find(serial);
    ++last_number_;  // incremented on all ranks alike
    if (entry == nullptr) continue;
    entry->number = last_number_;
  }
  show_pending_reached();
}

void NetworkWindows::show_pending_reached() noexcept {
  for (const std::uint64_t serial : pending_) {
    Entry* const entry = find(serial);
    if (entry == nullptr || entry->nic.pieces.empty()) continue;
    DirectWindows::finish(entry->direct, keys_.first(), entry->nic.pieces.front().keys.local);
  }
  pending_.clear();
}

void NetworkWindows::rollback() noexcept {
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t serial : pending_) {
    Entry* const entry = find(serial);
    if (entry == nullptr) continue;
    revoke(*entry);
    entry->more_keys.clear();  // no kernel has received the table that refers to them
    entry->direct.exported = {};
    entry->nic.bytes = 0;
  }
  pending_.clear();
}

void NetworkWindows::deregister(std::uint64_t serial) noexcept {
  const std::lock_guard lock(mutex_);
  Entry* const entry = find(serial);
  if (entry == nullptr) return;
  revoke(*entry);
  entry->nic.bytes = 0;
}

Result<KeysMessage> NetworkWindows::attach(WindowNics nics, std::uint64_t number,
                                           const NicView& process) {
  const std::lock_guard lock(mutex_);
  keys_.attach(std::move(nics), process);
  network_ = number;
  KeysMessage mine;
  mine.backups = keys_.backups();
  for (const auto& [serial, entry] : entries_) {
    if (entry->number == 0 || entry->nic.bytes == 0) continue;
    ORIEL_CHECK(keys_.add(entry->nic));
    mine.keys.push_back(keys_.describe(entry->nic, entry->number, {}));
  }
  std::sort(mine.keys.begin(), mine.keys.end(),
            [](const WindowKey& a, const WindowKey& b) { return a.number < b.number; });
  return mine;
}

Status NetworkWindows::learn(const std::vector<KeysMessage>& ranks) {
  const std::lock_guard lock(mutex_);
  for (const auto& [serial, entry] : entries_) {
    if (!entry->nic.pieces.empty()) ORIEL_CHECK(fill(*entry, entry->number, ranks));
  }
  return {};
}

void NetworkWindows::use_direct(DirectPath path) {
  const std::lock_guard lock(mutex_);
  direct_.use(std::move(path));
}

void NetworkWindows::export_earlier(KeysMessage& mine) {
  const std::lock_guard lock(mutex_);
  pending_.clear();
  mine.direct = direct_.is_ready();
  mine.backups = keys_.backups();
  if (!mine.direct) return;
  for (const auto& [serial, entry] : entries_) {
    if (entry->number != 0 && !entry->nic.pieces.empty()) pending_.push_back(serial);
  }
  std::sort(pending_.begin(), pending_.end(),
            [&](std::uint64_t a, std::uint64_t b) { return find(a)->number < find(b)->number; });
  for (const std::uint64_t serial : pending_) {
    Entry* const entry = find(serial);
    direct_.make_export(entry->direct, entry->nic.address, entry->nic.bytes);
    mine.keys.push_back(key_of(*entry, entry->number));
  }
}

Task<Status> NetworkWindows::map_earlier(EventLoop& loop, Deadline deadline) {
  KeysMessage mine;
  export_earlier(mine);
  Bytes message = encode(mine);
  auto gathered = co_await world_.all_gather(boot::Operation::network, std::move(message));
  if (!gathered.ok()) co_return std::move(gathered).error();
  std::vector<KeysMessage> ranks;
  Status local;
  for (std::size_t rank = 0; rank < gathered.value().size() && local.ok(); ++rank) {
    auto decoded = decode_keys(gathered.value()[rank]);
    if (!decoded.ok()) {
      local = std::move(decoded).error().with_origin(static_cast<int>(rank));
      continue;
    }
    ranks.push_back(std::move(decoded).value());
    // Maps nothing, so bytes go over the wire: ranks may have deregistered different windows.
    if (!ranks.back().direct || !same_windows(ranks.front(), ranks.back())) co_return Status();
  }
  if (!mine.direct) co_return local;
  co_return co_await exchange_windows(loop, std::move(ranks), std::move(local), deadline);
}

void NetworkWindows::use_earlier() noexcept {
  const std::lock_guard lock(mutex_);
  show_pending_reached();
}

void NetworkWindows::detach() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [serial, entry] : entries_) revoke(*entry);
  direct_.reset();
  keys_.detach();
}

}  // namespace oriel::comm
