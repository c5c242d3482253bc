// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "oriel/error.hpp"

#include "net/queue/memory_keys.hpp"

namespace oriel::net {

/// Registered memory of peers that this process has mapped too, and which memory of its own peers
/// have mapped. Bytes between two such ranges need no wire: the NIC whose memory is written, and no
/// other, copies them from the peer's mapping when the message that stands for them comes. Hence
/// keys and ranges are checked where they always are, order and answers stay as they are, and a
/// peer can name no other source than what it has let this process map.
///
/// Peers are known by a number, see QueuePeer::process. Not thread-safe: the NIC's lock guards it.
class PeerMemory {
 public:
  /// Refused unless `range`, whose `address` is the peer's, is memory; rights do not matter.
  Status add(std::uint64_t peer, std::uint32_t key, const MemoryRange& range);
  void remove(std::uint64_t peer, std::uint32_t key) { ranges_.erase({peer, key}); }
  /// remote_access if it is not all mapped.
  MemoryKeys::Found find(std::uint64_t peer, std::uint32_t key, std::uint64_t address,
                         std::uint64_t bytes) const;

  /// Whether the peer has mapped what this side has registered as `key`.
  void set_reached(std::uint64_t peer, std::uint32_t key, bool reached);
  bool is_reached(std::uint64_t peer, std::uint32_t key) const {
    return reached_.contains({peer, key});
  }
  /// The key has been given back.
  void forget(std::uint32_t key);

 private:
  using Name = std::pair<std::uint64_t, std::uint32_t>;
  std::map<Name, MemoryRange> ranges_;
  std::set<Name> reached_;
};

}  // namespace oriel::net
