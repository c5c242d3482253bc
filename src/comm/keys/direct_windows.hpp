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

/// Windows of ranks of other teams that this rank maps all the same, for its NIC to copy from.
namespace oriel::comm {

/// Whether near ranks map each other's windows.
struct DirectCopies {
  std::atomic<bool> wanted{true};

  /// The choice in force in this process. Tests clear it before a communicator starts, so that all
  /// bytes between nodes go by the wire.
  static DirectCopies& in_force() {
    static constinit DirectCopies copies;
    return copies;
  }
};

/// How their descriptors travel. Valid as long as the network that has made it.
struct DirectPath {
  window::FdExchange* exchange = nullptr;  ///< null: no rank is near
  window::Memory* memory = nullptr;
  /// By world rank: whose memory this rank's device can map, and the other way round.
  std::vector<bool> peers;
};

/// The allocation behind a window, if there is one that a descriptor names; else of 0 bytes.
struct WindowExport {
  WindowSource source;
  OwnedFd descriptor;
};
WindowExport export_window(window::Memory& memory, const std::byte* user, std::size_t bytes);

/// The process that copies for a NIC, and the memory that it has to be shown. Null: there is none.
struct NicView {
  net::NicProcess* process = nullptr;
  window::Memory* memory = nullptr;
};
/// Shows the allocations behind [user, user + bytes), and notes where each begins.
Status show_window(const NicView& view, const std::byte* user, std::size_t bytes,
                   std::vector<const std::byte*>& shown);
void hide_window(const NicView& view, std::vector<const std::byte*>& shown) noexcept;

/// A peer's window as it is mapped here, and shown to the process if there is one. Unmaps when
/// destroyed. Move-only.
class PeerMapping {
 public:
  /// `key` is what the peer has told of it, with a source; it was checked by decode_keys().
  static Result<PeerMapping> make(window::Memory& memory, OwnedFd descriptor, const WindowKey& key,
                                  const NicView& view);
  PeerMapping(PeerMapping&& other) noexcept = default;
  PeerMapping& operator=(PeerMapping&&) = delete;
  ~PeerMapping() { hide_window(view_, shown_); }
  /// The window's first byte.
  std::byte* data() const { return mapping_->base() + offset_; }

 private:
  PeerMapping(std::unique_ptr<window::AddressRange> range, std::unique_ptr<window::Mapping> mapping,
              std::size_t offset, const NicView& view)
      : range_(std::move(range)), mapping_(std::move(mapping)), offset_(offset), view_(view) {}
  std::unique_ptr<window::AddressRange> range_;
  std::unique_ptr<window::Mapping> mapping_;  // destroyed first
  std::size_t offset_;
  NicView view_;
  std::vector<const std::byte*> shown_;  // empty once it was moved from
};

/// A window's part of DirectWindows.
struct DirectWindow {
  WindowExport exported;                                        ///< until its peers have it
  std::map<int, std::pair<std::uint32_t, PeerMapping>> mapped;  ///< of peers, with their keys
  bool is_reached = false;                                      ///< those have mapped this rank's
};

/// Maps the windows of near peers as they are registered, and has those map this rank's. One thread
/// at a time.
class DirectWindows {
 public:
  void use(DirectPath path) { path_.emplace(std::move(path)); }
  void reset() { path_.reset(); }
  /// KeysMessage::direct.
  bool is_ready() const;
  /// Makes what near peers map the window by, if there are any.
  void make_export(DirectWindow& window, std::uint64_t address, std::uint64_t bytes);
  /// Adds a descriptor of the window for each near peer, and keeps none.
  Status add_descriptors(DirectWindow& window, std::vector<std::vector<OwnedFd>>& outgoing);
  /// What add_descriptors() of all windows has made goes to the peers, for what they have made.
  /// Must be called by every rank that has any near; `local` is why this one cannot, which ends the
  /// others' waits.
  Task<Result<std::vector<std::vector<OwnedFd>>>> exchange(
      EventLoop& loop, std::vector<std::vector<OwnedFd>> outgoing,
      const std::vector<KeysMessage>& ranks, Status local, Deadline deadline);
  bool is_near(int rank) const { return path_->peers[static_cast<std::size_t>(rank)]; }
  bool has_peers() const { return path_->exchange != nullptr; }
  /// Maps a peer's window for the NIC, which copies from it from then on.
  Status map(DirectWindow& window, int peer, const WindowKey& key, OwnedFd descriptor,
             WindowNic& nic, const NicView& view, net::MemoryPlace place);
  /// All peers have mapped what they got; `key` is the NIC's of this rank's window.
  static void finish(DirectWindow& window, WindowNic& nic, std::uint32_t key) noexcept;
  static void unmap(DirectWindow& window, WindowNic& nic) noexcept;

 private:
  std::optional<DirectPath> path_;
};

}  // namespace oriel::comm
