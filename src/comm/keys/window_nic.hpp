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

/// What NICs may do with windows.
inline constexpr std::uint8_t kWindowAccess =
    net::kLocalWrite | net::kRemoteWrite | net::kRemoteRead | net::kRemoteAtomic;

/// One of a rank's NICs as its windows need it. Any thread.
class WindowNic {
 public:
  /// What entries of this rank call the memory, and those of other ranks. Neither is 0.
  struct Keys {
    std::uint32_t local = 0;
    std::uint32_t remote = 0;
  };
  virtual ~WindowNic() = default;
  virtual Result<Keys> register_memory(const net::MemoryRange& range) = 0;
  virtual void deregister_memory(std::uint32_t local_key) noexcept = 0;

  // Of NICs that copy from memory of near peers that is mapped here (NetworkWindows::use_direct):
  // as the functions of NicSoft. Others are never asked.
  virtual Status map_peer_memory(std::uint64_t /*peer*/, std::uint32_t /*key*/,
                                 const net::MemoryRange& /*range*/) {
    return Error(ErrorCode::internal, "this NIC copies from no memory of peers");
  }
  virtual void unmap_peer_memory(std::uint64_t /*peer*/, std::uint32_t /*key*/) noexcept {}
  virtual void set_reached(std::uint64_t /*peer*/, std::uint32_t /*key*/) noexcept {}
};

/// The NICs of a rank as its windows see them. Outlived by the NICs, until detach().
struct WindowNics {
  std::vector<WindowNic*> ports;
  /// Whose allocations have a key of their own each, in windows of several: for NICs that register
  /// no range across two. Null: a window has one key.
  window::Memory* memory = nullptr;
  /// What the keys of a path's ends are called there, which are those of these NICs of both ranks:
  /// others than the first ones, whose keys stand in entries.
  struct Path {
    net::KeyAliases* aliases = nullptr;
    std::size_t own = 0;
    std::size_t far = 0;
  };
  /// By world rank. Empty where no rank has any.
  std::vector<std::vector<Path>> paths;
};

}  // namespace oriel::comm
