// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/fd.hpp"
#include "base/task.hpp"
#include "comm/keys/keys_message.hpp"
#include "comm/keys/window_nic.hpp"
#include "net/process/nic_process.hpp"
#include "net/queue/memory_keys.hpp"
#include "window/exchange/fd_exchange.hpp"
#include "window/memory/mappable_memory.hpp"

/// Maps windows of ranks of other teams, so that this rank's NIC copies from them directly.
namespace oriel::comm {

/// Switch: near ranks (that can map each other's memory) map each other's windows.
struct DirectCopies {
  std::atomic<bool> wanted{true};

  /// Returns the process-wide switch. Tests clear it before a communicator starts, so that all
  /// bytes between nodes go over the wire.
  static DirectCopies& in_force() {
    static constinit DirectCopies copies;
    return copies;
  }
};

/// Path on which descriptors of windows are exchanged. Valid as long as the network that made it.
struct DirectPath {
  window::FdExchange* exchange = nullptr;  ///< null: no rank is near
  window::Memory* memory = nullptr;
  /// By world rank: set for ranks of other teams if both sides can map each other's memory. Names
  /// that users gave to nodes do not count.
  std::vector<bool> peers;
};

/// Allocation behind a window, and its descriptor. `source` has 0 bytes if no single descriptor
/// names the allocation.
struct WindowExport {
  WindowSource source;
  OwnedFd descriptor;
};
WindowExport export_window(window::Memory& memory, const std::byte* user, std::size_t bytes);

/// Process that copies for a NIC, and the memory object that exports allocations to it. Null: no
/// such process.
struct NicView {
  net::NicProcess* process = nullptr;
  window::Memory* memory = nullptr;
};
/// Exports the allocations behind [user, user + bytes) to the process, and appends their base
/// addresses to `shown`.
Status show_window(const NicView& view, const std::byte* user, std::size_t bytes,
                   std::vector<const std::byte*>& shown);
void hide_window(const NicView& view, std::vector<const std::byte*>& shown) noexcept;

/// A peer's window mapped into this process, and exported to the copying process if there is one.
/// Unmaps when destroyed. Move-only.
class PeerMapping {
 public:
  /// `key` is the peer's message about the window. It has a source, and decode_keys() has checked
  /// it.
  static Result<PeerMapping> make(window::Memory& memory, OwnedFd descriptor, const WindowKey& key,
                                  const NicView& view);
  PeerMapping(PeerMapping&& other) noexcept = default;
  PeerMapping& operator=(PeerMapping&&) = delete;
  ~PeerMapping() { hide_window(view_, shown_); }
  /// Returns the window's first byte.
  std::byte* data() const { return mapping_->base() + offset_; }

 private:
  PeerMapping(std::unique_ptr<window::AddressRange> range, std::unique_ptr<window::Mapping> mapping,
              std::size_t offset, const NicView& view)
      : range_(std::move(range)), mapping_(std::move(mapping)), offset_(offset), view_(view) {}
  std::unique_ptr<window::AddressRange> range_;
  std::unique_ptr<window::Mapping> mapping_;  // destroyed before range_
  std::size_t offset_;
  NicView view_;
  std::vector<const std::byte*> shown_;  // empty after a move
};

/// State of one window for DirectWindows.
struct DirectWindow {
  WindowExport exported;                                        ///< the descriptor is kept until it
                                                                ///< is duplicated for the peers
  std::map<int, std::pair<std::uint32_t, PeerMapping>> mapped;  ///< by peer: the peer's key, and
                                                                ///< the mapping
  bool is_reached = false;                                      ///< descriptors for the peers have
                                                                ///< been made
};

/// Maps the windows of near peers when they are registered, and sends this rank's windows to be
/// mapped. One thread at a time.
class DirectWindows {
 public:
  void use(DirectPath path) { path_.emplace(std::move(path)); }
  void reset() { path_.reset(); }
  /// Returns the value for KeysMessage::direct.
  bool is_ready() const;
  /// Exports the window for near peers, if there are any.
  void make_export(DirectWindow& window, std::uint64_t address, std::uint64_t bytes);
  /// Adds to `outgoing` one duplicate of the window's descriptor per near peer, and closes the
  /// original.
  Status add_descriptors(DirectWindow& window, std::vector<std::vector<OwnedFd>>& outgoing);
  /// Sends the descriptors of add_descriptors() to the peers and returns theirs. Must be called by
  /// every rank that has near peers. `local` is this rank's status: an error disconnects, which
  /// ends the peers' waits.
  Task<Result<std::vector<std::vector<OwnedFd>>>> exchange(
      EventLoop& loop, std::vector<std::vector<OwnedFd>> outgoing,
      const std::vector<KeysMessage>& ranks, Status local, Deadline deadline);
  bool is_near(int rank) const { return path_->peers[static_cast<std::size_t>(rank)]; }
  bool has_peers() const { return path_->exchange != nullptr; }
  /// Maps a peer's window and registers it with the NIC, which may then copy from it.
  Status map(DirectWindow& window, int peer, const WindowKey& key, OwnedFd descriptor,
             WindowNic& nic, const NicView& view, net::MemoryPlace place);
  /// Call once all peers have mapped this rank's windows. `key` is the NIC's key of this rank's
  /// window.
  static void finish(DirectWindow& window, WindowNic& nic, std::uint32_t key) noexcept;
  static void unmap(DirectWindow& window, WindowNic& nic) noexcept;

 private:
  std::optional<DirectPath> path_;
};

}  // namespace oriel::comm
