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

/// Memory of peers that this process has mapped, and own memory that peers have mapped. Bytes
/// between two such ranges need no wire. The NIC whose memory is written copies the bytes from its
/// mapping of the peer's memory. It copies when the request for a write or the response to a read
/// arrives. No other NIC does. Hence keys and ranges are checked at
/// the usual place, and order and responses stay the same. A peer can name only sources that it has
/// let this process map.
///
/// Peers are identified by number, see QueuePeer::process. Not thread-safe: the NIC's lock guards
/// it.
class PeerMemory {
 public:
  /// Adds a mapping. `range.address` is the peer's address. Returns an error if `range` is not
  /// memory; access rights do not matter.
  Status add(std::uint64_t peer, std::uint32_t key, const MemoryRange& range);
  void remove(std::uint64_t peer, std::uint32_t key) { ranges_.erase({peer, key}); }
  /// Finds a mapped range; the syndrome is remote_access unless all of it is mapped.
  MemoryKeys::Found find(std::uint64_t peer, std::uint32_t key, std::uint64_t address,
                         std::uint64_t bytes) const;

  /// Records whether the peer has mapped the local memory registered as `key`.
  void set_reached(std::uint64_t peer, std::uint32_t key, bool reached);
  bool is_reached(std::uint64_t peer, std::uint32_t key) const {
    return reached_.contains({peer, key});
  }
  /// Removes a key that is being deregistered.
  void forget(std::uint32_t key);

 private:
  using Name = std::pair<std::uint64_t, std::uint32_t>;
  std::map<Name, MemoryRange> ranges_;
  std::set<Name> reached_;
};

}  // namespace oriel::net
