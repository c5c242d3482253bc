// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oriel/error.hpp"

#include "net/queue/key_aliases.hpp"
#include "net/queue/memory_keys.hpp"
#include "window/memory/mappable_memory.hpp"

namespace oriel::comm {

/// Access rights of NICs to windows.
inline constexpr std::uint8_t kWindowAccess =
    net::kLocalWrite | net::kRemoteWrite | net::kRemoteRead | net::kRemoteAtomic;

/// Interface of one of a rank's NICs for windows. Any thread.
class WindowNic {
 public:
  /// lkey for WQEs of this rank, and rkey for WQEs of other ranks. Neither is 0.
  struct Keys {
    std::uint32_t local = 0;
    std::uint32_t remote = 0;
  };
  virtual ~WindowNic() = default;
  virtual Result<Keys> register_memory(const net::MemoryRange& range) = 0;
  virtual void deregister_memory(std::uint32_t lkey) noexcept = 0;

  // These functions are called only on NICs that copy from mapped memory of near peers
  // (NetworkWindows::use_direct). NicSoft has functions of the same names.
  virtual Status map_peer_memory(std::uint64_t /*peer*/, std::uint32_t /*key*/,
                                 const net::MemoryRange& /*range*/) {
    return Error(ErrorCode::internal, "this NIC copies from no memory of peers");
  }
  virtual void unmap_peer_memory(std::uint64_t /*peer*/, std::uint32_t /*key*/) noexcept {}
  virtual void set_reached(std::uint64_t /*peer*/, std::uint32_t /*key*/) noexcept {}
};

/// NICs of a rank, for windows. The NICs must live until detach().
struct WindowNics {
  std::vector<WindowNic*> ports;
  /// Memory whose allocations get one key each, for NICs that register no range across two
  /// allocations. Null: a window has one key.
  window::Memory* memory = nullptr;
  /// Aliases of keys on a path that does not join the first NICs of both ranks. WQEs carry the keys
  /// of the first NICs. `own` and `far` are the indexes of the path's NICs.
  struct Path {
    net::KeyAliases* aliases = nullptr;
    std::size_t own = 0;
    std::size_t far = 0;
  };
  /// Paths by world rank. Empty if no rank has any.
  std::vector<std::vector<Path>> paths;
};

}  // namespace oriel::comm
