// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "comm/network/network_message.hpp"
#include "net/process/nic_process.hpp"
#include "window/exchange/fd_exchange.hpp"
#include "window/memory/mappable_memory.hpp"

/// Windows of ranks of other teams that this rank maps all the same, for its NIC to copy from.
namespace oriel::comm {

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

}  // namespace oriel::comm
