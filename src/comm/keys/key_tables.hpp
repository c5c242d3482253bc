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

/// A part of a window that has a key of its own.
struct KeyedPiece {
  std::uint64_t begin = 0;  ///< in the window; of the first one 0
  std::uint32_t key = 0;
};

/// Makes the tables in which kernels find a window's keys: a NetworkWindow, and behind it the
/// regions of all ranks. Keys that have no room in a region are in objects of other pools. One
/// thread at a time.
class KeyTables {
 public:
  struct Free {
    std::shared_ptr<shadow::ShadowPool> pool;
    void operator()(void* table) const noexcept { static_cast<void>(pool->free(table)); }
  };
  /// A table's room, by the address at which kernels find it.
  using Table = std::unique_ptr<void, Free>;
  /// Gives the pool of the rank's device for objects of this size.
  using Pools = std::function<Result<std::shared_ptr<shadow::ShadowPool>>(std::size_t bytes)>;
  /// `tables` holds objects of table_bytes(), those of `pools` keys; `place` is where windows lie.
  KeyTables(std::shared_ptr<shadow::ShadowPool> tables, Pools pools, net::MemoryPlace place)
      : tables_(std::move(tables)), pools_(std::move(pools)), place_(place) {}

  static std::size_t table_bytes(int world_size);

  /// Any thread.
  Result<Table> allocate() const;
  /// `pieces` as cut_at() asks for them. If not all keys have room in the region the others are in
  /// an object that is added to `beyond`, up to date: it has to live as long as kernels may read
  /// the region.
  Result<device::queue::Region> make(std::uint64_t address, std::uint64_t bytes,
                                     std::span<const KeyedPiece> pieces,
                                     std::vector<shadow::OwnedShadow>& beyond);
  /// Before kernels are told of the table's network. `peers`: by world rank.
  Status write(const Table& table, device::NetworkWindow head,
               std::span<const device::queue::Region> peers) const;
  /// Takes the network's number out. Kernels may be reading: whatever else is there has to stay.
  void clear_number(const Table& table) const noexcept;

 private:
  const std::shared_ptr<shadow::ShadowPool> tables_;
  const Pools pools_;
  const net::MemoryPlace place_;
  // By size of their objects. Kept, so that memory which a kernel reads too late is a table still.
  std::map<std::size_t, std::shared_ptr<shadow::ShadowPool>> used_;
};

}  // namespace oriel::comm
