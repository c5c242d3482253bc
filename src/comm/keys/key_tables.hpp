// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "oriel/device/network.hpp"
#include "oriel/device/queue/region.hpp"
#include "oriel/error.hpp"

#include "net/queue/memory_keys.hpp"
#include "shadow/shadow_pool.hpp"

namespace oriel::comm {

/// Part of a window that has its own key.
struct KeyedPiece {
  std::uint64_t begin = 0;  ///< offset in the window; 0 for the first piece
  std::uint32_t key = 0;
};

/// Creates the tables in which kernels find a window's keys: a NetworkWindow followed by the
/// regions of all ranks. Keys that do not fit into a region are in objects of other pools. One
/// thread at a time.
class KeyTables {
 public:
  struct Free {
    std::shared_ptr<shadow::ShadowPool> pool;
    void operator()(void* table) const noexcept { static_cast<void>(pool->free(table)); }
  };
  /// Memory of a table, by its address for kernels.
  using Table = std::unique_ptr<void, Free>;
  /// Returns the pool of the rank's device for objects of `bytes` bytes.
  using Pools = std::function<Result<std::shared_ptr<shadow::ShadowPool>>(std::size_t bytes)>;
  /// `tables` holds objects of table_bytes(); the pools of `pools` hold keys. `place` is the memory
  /// that holds the windows.
  KeyTables(std::shared_ptr<shadow::ShadowPool> tables, Pools pools, net::MemoryPlace place)
      : tables_(std::move(tables)), pools_(std::move(pools)), place_(place) {}

  static std::size_t table_bytes(int world_size);

  /// Any thread.
  Result<Table> allocate() const;
  /// Makes the region for `pieces`, which satisfy the conditions of cut_at(). Keys that do not fit
  /// into the region go to an object that is added to `beyond`, already flushed. The object must
  /// live while kernels may read the region.
  Result<device::queue::Region> make(std::uint64_t address, std::uint64_t bytes,
                                     std::span<const KeyedPiece> pieces,
                                     std::vector<shadow::OwnedShadow>& beyond);
  /// Writes the table and flushes it. Call it before kernels learn of the window, or of the table's
  /// network if the window is older. `peers`: by world rank.
  Status write(const Table& table, device::NetworkWindow head,
               std::span<const device::queue::Region> peers) const;
  /// Clears the network's number. Kernels may be reading: the rest of the table stays as it is.
  void clear_number(const Table& table) const noexcept;

 private:
  const std::shared_ptr<shadow::ShadowPool> tables_;
  const Pools pools_;
  const net::MemoryPlace place_;
  // Pools by object size. They are kept, so that memory that a kernel reads too late still holds a
  // table.
  std::map<std::size_t, std::shared_ptr<shadow::ShadowPool>> used_;
};

}  // namespace oriel::comm
