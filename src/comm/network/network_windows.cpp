// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/network/network_windows.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <new>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include "base/system_table.hpp"
#include "base/try.hpp"

namespace oriel::comm {
namespace {

constexpr std::uint8_t kWindowAccess =
    net::kLocalWrite | net::kRemoteWrite | net::kRemoteRead | net::kRemoteAtomic;

/// What a NIC calls a rank whose memory is mapped.
std::uint64_t process_of(int rank) {
  return static_cast<std::uint64_t>(rank) + 1;
}

/// The pieces of a window as a rank has told of them.
std::vector<KeyedPiece> pieces_of(const WindowKey& key) {
  std::vector<KeyedPiece> pieces{{0, key.key}};
  for (const WindowPiece& piece : key.later_pieces) pieces.push_back({piece.begin, piece.key});
  return pieces;
}

}  // namespace

Status WindowNic::map_peer_memory(std::uint64_t /*peer*/, std::uint32_t /*key*/,
                                  const net::MemoryRange& /*range*/) {
  return Error(ErrorCode::internal, "this NIC copies from no memory of peers");
}

NetworkWindows::NetworkWindows(boot::Group& world, int rank, std::vector<bool> lsa_team,
                               std::shared_ptr<shadow::ShadowPool> tables, KeyTables::Pools pools,
                               net::MemoryPlace place)
    : world_(world),
      rank_(rank),
      lsa_team_(std::move(lsa_team)),
      tables_(std::move(tables)),
      place_(place),
      key_tables_(std::move(pools)) {}

NetworkWindows::~NetworkWindows() = default;

std::size_t NetworkWindows::table_bytes(int world_size) {
  return sizeof(device::NetworkWindow) +
         std::bit_ceil(static_cast<std::size_t>(world_size)) * sizeof(device::queue::Region);
}

Result<const device::NetworkWindow*> NetworkWindows::make_table(std::uint64_t serial) {
  auto entry = std::make_unique<Entry>();
  entry->serial = serial;
  ORIEL_TRY(entry->table, tables_->allocate({}));
  const auto* const table = static_cast<const device::NetworkWindow*>(entry->table);
  const std::lock_guard lock(mutex_);
  try {
    serials_.emplace(table, serial);
    entries_.emplace(serial, std::move(entry));
  } catch (const std::bad_alloc&) {
    serials_.erase(table);
    static_cast<void>(tables_->free(const_cast<device::NetworkWindow*>(table)));
    throw;
  }
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
  static_cast<void>(tables_->free(entry->second->table));
  entries_.erase(entry);
  serials_.erase(serial);
}

NetworkWindows::Entry* NetworkWindows::find(std::uint64_t serial) {
  const auto found = entries_.find(serial);
  return found == entries_.end() ? nullptr : found->second.get();
}

/// Where the pieces of a window begin: with each allocation, if those are to have keys of their
/// own.
Result<std::vector<std::uint64_t>> NetworkWindows::find_pieces(const Entry& entry) const {
  std::vector<std::uint64_t> begins{0};
  if (nics_.memory == nullptr) return begins;
  const auto* const user = reinterpret_cast<const std::byte*>(entry.address);
  ORIEL_TRY(const auto segments, nics_.memory->find_segments(user, entry.bytes));
  for (std::size_t i = 1; i < segments.size(); ++i) {
    begins.push_back(reinterpret_cast<std::uint64_t>(segments[i].base) - entry.address);
  }
  return begins;
}

/// With every NIC. A piece stands in the entry as soon as it has a key.
Status NetworkWindows::add_piece(Entry& entry, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t address = entry.address + begin;
  net::MemoryRange range{address, end - begin, reinterpret_cast<std::byte*>(address),
                         kWindowAccess};
  range.place = place_;
  range.own_words = entry.own_words;
  Entry::Piece piece;
  piece.begin = begin;
  ORIEL_TRY(piece.keys, nic_->register_memory(range));
  entry.pieces.push_back(piece);
  Entry::Piece& made = entry.pieces.back();
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

Status NetworkWindows::add_keys(Entry& entry) {
  ORIEL_CHECK(show_window(process_, reinterpret_cast<const std::byte*>(entry.address), entry.bytes,
                          entry.shown));
  ORIEL_TRY(const std::vector<std::uint64_t> begins, find_pieces(entry));
  entry.pieces.reserve(begins.size());
  for (std::size_t i = 0; i < begins.size(); ++i) {
    const bool is_last = i + 1 == begins.size();
    Status added = add_piece(entry, begins[i], is_last ? entry.bytes : begins[i + 1]);
    if (added.ok()) continue;
    if (begins.size() == 1) return added;
    return std::move(added).error().with_context(
        fmt::format("at {} of a window of {} bytes, in allocation {} of {}", begins[i], entry.bytes,
                    i + 1, begins.size()));
  }
  return {};
}

WindowKey NetworkWindows::key_of(const Entry& entry, std::uint64_t number) const {
  const Entry::Piece& first = entry.pieces.front();
  WindowKey key{number,       entry.address, entry.bytes, first.keys.remote, entry.exported.source,
                first.backups};
  for (std::size_t i = 1; i < entry.pieces.size(); ++i) {
    const Entry::Piece& piece = entry.pieces[i];
    key.later_pieces.push_back({piece.begin, piece.keys.remote, piece.backups});
  }
  return key;
}

/// What the keys of a rank's window are called on the other paths to it.
Status NetworkWindows::learn_aliases(Entry& entry, int rank, const WindowKey& key,
                                     std::uint8_t backups) {
  if (nics_.paths.empty() || nics_.paths[static_cast<std::size_t>(rank)].empty()) return {};
  ORIEL_CHECK(learn_alias(entry, rank, key.number, {0, key.key, key.backups}, backups));
  for (const WindowPiece& piece : key.later_pieces) {
    ORIEL_CHECK(learn_alias(entry, rank, key.number, piece, backups));
  }
  return {};
}

Status NetworkWindows::learn_alias(Entry& entry, int rank, std::uint64_t number,
                                   const WindowPiece& piece, std::uint8_t backups) {
  for (const WindowNics::Path& path : nics_.paths[static_cast<std::size_t>(rank)]) {
    if (path.far == 0) continue;
    if (path.far > backups || piece.backups[path.far - 1] == 0) {
      return Error(ErrorCode::remote, fmt::format("rank {} has told no key of window {} for its "
                                                  "NIC {}",
                                                  rank, number, path.far))
          .with_origin(rank);
    }
    path.aliases->add_remote(piece.key, piece.backups[path.far - 1]);
  }
  entry.far_keys.emplace_back(rank, piece.key);
  return {};
}

Status NetworkWindows::write_table(const Entry& entry, const device::NetworkWindow& head,
                                   std::span<const device::queue::Region> peers) {
  ORIEL_CHECK(tables_->write(entry.table, sizeof head, std::as_bytes(peers)));
  ORIEL_CHECK(tables_->write(entry.table, 0, std::as_bytes(std::span(&head, 1))));
  return tables_->flush();
}

void NetworkWindows::revoke_backups(Entry& entry) noexcept {
  for (const Entry::Piece& piece : entry.pieces) {
    for (std::size_t i = 1; i < nics_.ports.size(); ++i) {
      const std::uint32_t key = piece.backups[i - 1];
      if (key != 0) nics_.ports[i]->deregister_memory(key);
    }
    for (const auto& paths : nics_.paths) {
      for (const WindowNics::Path& path : paths) path.aliases->remove_local(piece.keys.local);
    }
  }
  for (const auto& [rank, key] : entry.far_keys) {
    for (const WindowNics::Path& path : nics_.paths[static_cast<std::size_t>(rank)]) {
      path.aliases->remove_remote(key);
    }
  }
  entry.far_keys.clear();
}

/// Kernels may be reading the table: whatever else stands in it has to stay.
void NetworkWindows::clear_number(Entry& entry) noexcept {
  if (place_ == net::MemoryPlace::host) {  // its objects are their own copies
    auto* const table = static_cast<device::NetworkWindow*>(entry.table);
    std::atomic_ref<std::uint64_t>(table->network).store(0, std::memory_order_relaxed);
    return;
  }
  const std::uint64_t none = 0;
  static_cast<void>(tables_->write(entry.table, offsetof(device::NetworkWindow, network),
                                   std::as_bytes(std::span(&none, 1))));
  static_cast<void>(tables_->flush());
}

void NetworkWindows::revoke(Entry& entry) noexcept {
  if (entry.pieces.empty()) return hide_window(process_, entry.shown);
  clear_number(entry);
  for (const auto& [rank, mapped] : entry.mapped) {
    nic_->unmap_peer_memory(process_of(rank), mapped.first);
  }
  entry.mapped.clear();
  entry.is_reached = false;
  for (const Entry::Piece& piece : entry.pieces) nic_->deregister_memory(piece.keys.local);
  revoke_backups(entry);
  hide_window(process_, entry.shown);
  entry.pieces.clear();
}

/// The regions of all ranks that have the window.
Status NetworkWindows::find_peers(Entry& entry, std::uint64_t number,
                                  const std::vector<KeysMessage>& ranks,
                                  std::vector<device::queue::Region>& peers) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (lsa_team_[rank]) continue;
    const auto& keys = ranks[rank].keys;
    const auto found =
        std::lower_bound(keys.begin(), keys.end(), number,
                         [](const WindowKey& key, std::uint64_t at) { return key.number < at; });
    if (found == keys.end() || found->number != number) continue;
    if (found->bytes != entry.bytes) {
      return Error(ErrorCode::remote,
                   fmt::format("rank {} has a window of {} bytes where rank {} has one of {}", rank,
                               found->bytes, rank_, entry.bytes))
          .with_origin(static_cast<int>(rank));
    }
    ORIEL_TRY(peers[rank],
              key_tables_.make(found->address, found->bytes, pieces_of(*found), entry.more_keys));
    ORIEL_CHECK(learn_aliases(entry, static_cast<int>(rank), *found, ranks[rank].backups));
  }
  return {};
}

/// Kernels read the table only once they were told of the window, or of the network.
Status NetworkWindows::fill(Entry& entry, std::uint64_t number,
                            const std::vector<KeysMessage>& ranks) {
  // Those of a network that has gone: until the table names others.
  const std::vector<shadow::OwnedShadow> earlier = std::exchange(entry.more_keys, {});
  std::vector<device::queue::Region> peers(ranks.size());
  ORIEL_CHECK(find_peers(entry, number, ranks, peers));
  std::vector<KeyedPiece> pieces;
  for (const Entry::Piece& piece : entry.pieces) pieces.push_back({piece.begin, piece.keys.local});
  device::NetworkWindow head;
  ORIEL_TRY(head.local, key_tables_.make(entry.address, entry.bytes, pieces, entry.more_keys));
  head.peers = reinterpret_cast<const device::queue::Region*>(
      static_cast<const std::byte*>(entry.table) + sizeof head);
  head.network = network_;
  return write_table(entry, head, peers);
}

Status NetworkWindows::prepare_locally(std::span<const window::RegisteredWindow> windows,
                                       KeysMessage& mine) {
  mine.backups = backups();
  std::uint64_t place = 0;
  for (const window::RegisteredWindow& window : windows) {
    Entry* const entry = find(window.serial);
    if (entry == nullptr) {
      return Error(ErrorCode::internal, fmt::format("window {} has no table", window.serial));
    }
    pending_.push_back(window.serial);
    entry->address = reinterpret_cast<std::uint64_t>(window.user);
    entry->bytes = window.bytes;
    entry->own_words = window.user == own_words_at_;
    if (nic_ == nullptr) continue;
    ORIEL_CHECK(add_keys(*entry));
    // Within the batch, windows are known by their places.
    if (direct_ && direct_->exchange != nullptr && mine.direct) {
      entry->exported = export_window(*direct_->memory, window.user, window.bytes);
    }
    mine.keys.push_back(key_of(*entry, ++place));
  }
  return {};
}

Status NetworkWindows::decode(const std::vector<Bytes>& messages, std::size_t windows,
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

Status NetworkWindows::learn_pending(const std::vector<KeysMessage>& ranks) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    Entry* const entry = find(pending_[i]);
    if (entry != nullptr) ORIEL_CHECK(fill(*entry, i + 1, ranks));
  }
  return {};
}

/// Each near peer gets a descriptor of its own for each window that has one.
Status NetworkWindows::export_pending(std::vector<std::vector<OwnedFd>>& outgoing) {
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t serial : pending_) {
    Entry* const entry = find(serial);
    if (entry == nullptr || !entry->exported.descriptor) continue;
    for (std::size_t rank = 0; rank < outgoing.size(); ++rank) {
      if (!direct_->peers[rank]) continue;
      OwnedFd copy(sys().fcntl_int(entry->exported.descriptor.get(), F_DUPFD_CLOEXEC, 0));
      if (!copy) return system_error("duplicating a window's descriptor");
      outgoing[rank].push_back(std::move(copy));
    }
    entry->exported.descriptor.reset();
    entry->is_reached = true;
  }
  return {};
}

Status NetworkWindows::map_pending(const std::vector<KeysMessage>& ranks,
                                   std::vector<std::vector<OwnedFd>> arrived) {
  const std::lock_guard lock(mutex_);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!direct_->peers[rank]) continue;
    auto descriptor = arrived[rank].begin();
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      const WindowKey& key = ranks[rank].keys[i];
      if (key.source.memory_bytes == 0) continue;
      Entry* const entry = find(pending_[i]);
      auto made = PeerMapping::make(*direct_->memory, std::move(*descriptor++), key, process_);
      const auto peer = static_cast<int>(rank);
      if (!made.ok()) {
        return std::move(made).error().with_context(
            fmt::format("mapping a window of rank {} for copies", peer));
      }
      if (entry == nullptr) continue;
      net::MemoryRange range{key.address, key.bytes, made->data(), kWindowAccess};
      range.place = place_;
      ORIEL_CHECK(nic_->map_peer_memory(process_of(peer), key.key, range));
      entry->mapped.emplace(peer, std::pair(key.key, std::move(made).value()));
    }
  }
  return {};
}

/// Of ranks that can map each other's memory, the windows that are about to be registered. Every
/// rank takes part that has any near; one that has failed ends the others' waits.
Task<Status> NetworkWindows::exchange_windows(EventLoop& loop, std::vector<KeysMessage> ranks,
                                              Status local, Deadline deadline) {
  if (direct_->exchange == nullptr) co_return local;
  std::vector<std::vector<OwnedFd>> outgoing(ranks.size());
  if (local.ok()) local = export_pending(outgoing);
  if (!local.ok()) {
    direct_->exchange->disconnect();
    co_return local;
  }
  std::vector<std::size_t> counts(ranks.size(), 0);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!direct_->peers[rank]) continue;
    for (const WindowKey& key : ranks[rank].keys) counts[rank] += key.source.memory_bytes != 0;
  }
  ORIEL_CO_TRY(auto arrived, co_await direct_->exchange->exchange_each(
                                 loop, std::move(outgoing), std::move(counts), deadline));
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
    has_nic = nic_ != nullptr;
    mine.direct = direct_ && (direct_->exchange == nullptr || direct_->exchange->connected());
    local = prepare_locally(windows, mine);
  }
  if (has_nic) {
    Bytes message = encode(mine);
    if (local.ok()) local = check_room(message.size(), world_.size());
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
    // The agreement that follows tells why a rank has failed.
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
    ++last_number_;  // on all ranks alike
    if (entry == nullptr) continue;
    entry->number = last_number_;
  }
  show_pending_reached();
}

/// All ranks have mapped what they got, or it would not have come to this.
void NetworkWindows::show_pending_reached() noexcept {
  for (const std::uint64_t serial : pending_) {
    Entry* const entry = find(serial);
    if (entry == nullptr) continue;
    entry->exported.descriptor.reset();
    for (const auto& [rank, mapped] : entry->mapped) {
      if (entry->is_reached) nic_->set_reached(process_of(rank), entry->pieces.front().keys.local);
    }
  }
  pending_.clear();
}

void NetworkWindows::rollback() noexcept {
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t serial : pending_) {
    Entry* const entry = find(serial);
    if (entry == nullptr) continue;
    revoke(*entry);
    entry->more_keys.clear();  // no kernel was told of the table that names them
    entry->exported = {};
    entry->bytes = 0;
  }
  pending_.clear();
}

void NetworkWindows::deregister(std::uint64_t serial) noexcept {
  const std::lock_guard lock(mutex_);
  Entry* const entry = find(serial);
  if (entry == nullptr) return;
  revoke(*entry);
  entry->bytes = 0;
}

Result<KeysMessage> NetworkWindows::attach(WindowNics nics, std::uint64_t number,
                                           const NicView& process) {
  const std::lock_guard lock(mutex_);
  nics_ = std::move(nics);
  nic_ = nics_.ports.front();
  process_ = process;
  network_ = number;
  KeysMessage mine;
  mine.backups = backups();
  for (const auto& [serial, entry] : entries_) {
    if (entry->number == 0 || entry->bytes == 0) continue;
    ORIEL_CHECK(add_keys(*entry));
    mine.keys.push_back(key_of(*entry, entry->number));
    mine.keys.back().source = {};
  }
  std::sort(mine.keys.begin(), mine.keys.end(),
            [](const WindowKey& a, const WindowKey& b) { return a.number < b.number; });
  return mine;
}

Status NetworkWindows::learn(const std::vector<KeysMessage>& ranks) {
  const std::lock_guard lock(mutex_);
  for (const auto& [serial, entry] : entries_) {
    if (!entry->pieces.empty()) ORIEL_CHECK(fill(*entry, entry->number, ranks));
  }
  return {};
}

void NetworkWindows::use_direct(DirectPath path) {
  const std::lock_guard lock(mutex_);
  direct_.emplace(std::move(path));
}

void NetworkWindows::export_earlier(KeysMessage& mine) {
  const std::lock_guard lock(mutex_);
  pending_.clear();
  mine.direct = direct_ && (direct_->exchange == nullptr || direct_->exchange->connected());
  mine.backups = backups();
  if (!mine.direct) return;
  for (const auto& [serial, entry] : entries_) {
    if (entry->number != 0 && !entry->pieces.empty()) pending_.push_back(serial);
  }
  std::sort(pending_.begin(), pending_.end(),
            [&](std::uint64_t a, std::uint64_t b) { return find(a)->number < find(b)->number; });
  for (const std::uint64_t serial : pending_) {
    Entry* const entry = find(serial);
    if (direct_->exchange != nullptr) {
      entry->exported = export_window(
          *direct_->memory, reinterpret_cast<const std::byte*>(entry->address), entry->bytes);
    }
    mine.keys.push_back(key_of(*entry, entry->number));
  }
}

namespace {

bool same_windows(const KeysMessage& a, const KeysMessage& b) {
  return std::equal(
      a.keys.begin(), a.keys.end(), b.keys.begin(), b.keys.end(),
      [](const WindowKey& one, const WindowKey& other) { return one.number == other.number; });
}

}  // namespace

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
    // Then bytes go by the wire, as everywhere; ranks may have deregistered different windows.
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
  process_ = {};
  nic_ = nullptr;
  nics_ = {};
}

}  // namespace oriel::comm
