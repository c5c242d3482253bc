// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "comm/network_message.hpp"
#include "window/fd_exchange.hpp"
#include "window/memory.hpp"

/// Windows of ranks of other teams that this rank maps all the same, for its NIC to copy from.
namespace oriel::comm {

/// How their descriptors travel. Valid as long as the network that has made it.
struct DirectPath {
  window::FdExchange* exchange = nullptr;  ///< null: no rank is near
  window::Memory* memory = nullptr;
  /// By world rank: whose memory this rank's device can map, and the other way round.
  std::vector<bool> peers;
  Duration timeout{};
};

/// The allocation behind a window, if there is one that a descriptor names; else of 0 bytes.
struct WindowExport {
  WindowSource source;
  OwnedFd descriptor;
};
WindowExport export_window(window::Memory& memory, const std::byte* user, std::size_t bytes);

/// A peer's window as it is mapped here. Unmaps when destroyed. Move-only.
class PeerMapping {
 public:
  /// `key` is what the peer has told of it, with a source; it was checked by decode_keys().
  static Result<PeerMapping> make(window::Memory& memory, OwnedFd descriptor, const WindowKey& key);
  /// The window's first byte.
  std::byte* data() const { return mapping_->base() + offset_; }

 private:
  PeerMapping(std::unique_ptr<window::AddressRange> range, std::unique_ptr<window::Mapping> mapping,
              std::size_t offset)
      : range_(std::move(range)), mapping_(std::move(mapping)), offset_(offset) {}
  std::unique_ptr<window::AddressRange> range_;
  std::unique_ptr<window::Mapping> mapping_;  // destroyed first
  std::size_t offset_;
};

}  // namespace oriel::comm
