// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "net/copy/copy_engine.hpp"
#include "net/queue/memory_keys.hpp"
#include "net/queue/peer_memory.hpp"
#include "net/wire/wire.hpp"

namespace oriel::net {

/// A peer as it is reached by a wire of this NIC.
struct WirePeer {
  std::uint32_t wire = 0;
  std::uint64_t address = 0;
  auto operator<=>(const WirePeer&) const = default;
};

/// Memory with outstanding rendezvous reads: peers may read it and have not answered yet.
class ExposedMemory {
 public:
  void expose(std::uint32_t key, WirePeer to) { ++exposed_[{key, to}].times; }
  void revoke(std::uint32_t key, WirePeer from) {
    const auto it = exposed_.find({key, from});
    if (it != exposed_.end() && --it->second.times == 0) exposed_.erase(it);
  }
  /// Marks a peer whose answer will never be processed.
  void lose(std::uint32_t key, WirePeer by) {
    const auto it = exposed_.find({key, by});
    if (it != exposed_.end()) it->second.is_lost = true;
  }
  bool is_exposed(std::uint32_t key) const {
    const auto it = exposed_.lower_bound({key, {}});
    return it != exposed_.end() && it->first.first == key;
  }
  /// Returns the peers that may read the memory. With `lost`, returns only peers whose answer will
  /// never be processed.
  std::vector<WirePeer> readers(std::uint32_t key, bool lost) const {
    std::vector<WirePeer> found;
    for (auto it = exposed_.lower_bound({key, {}}); it != exposed_.end() && it->first.first == key;
         ++it) {
      if (it->second.is_lost || !lost) found.push_back(it->first.second);
    }
    return found;
  }
  /// Drops all entries of this peer, because the wire to it has been cut.
  void forget(WirePeer who) {
    std::erase_if(exposed_, [&](const auto& one) { return one.first.second == who; });
  }
  /// Drops all entries of all peers of one wire.
  void forget_wire(std::uint32_t wire) {
    std::erase_if(exposed_, [&](const auto& one) { return one.first.second.wire == wire; });
  }

 private:
  struct Exposed {
    std::uint64_t times = 0;
    bool is_lost = false;
  };
  std::map<std::pair<std::uint32_t, WirePeer>, Exposed> exposed_;
};

/// State that the queues of one NIC share; the NIC's lock guards it.
struct NicContext {
  const Clock* clock = nullptr;
  MemoryKeys keys;
  PeerMemory peers;
  ExposedMemory exposed;
  HostCopyEngine host_engine;
  CopyEngine* gpu_engine = nullptr;  ///< null: the NIC has no key for GPU memory
  std::vector<std::unique_ptr<Wire>> wires;
  std::atomic<bool> sends_nothing{false};  ///< set without the lock, and never cleared
  std::atomic<bool> takes_nothing{false};  ///< set without the lock, and never cleared

  CopyEngine& engine(MemoryPlace place) {
    return place == MemoryPlace::gpu ? *gpu_engine : static_cast<CopyEngine&>(host_engine);
  }
};

}  // namespace oriel::net
