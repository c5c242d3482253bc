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

#include "oriel/device/queue/region.hpp"
#include "oriel/error.hpp"

#include "shadow/shadow_pool.hpp"

namespace oriel::comm {

/// A part of a window that has a key of its own.
struct KeyedPiece {
  std::uint64_t begin = 0;  ///< in the window; of the first one 0
  std::uint32_t key = 0;
};

/// Makes the regions in which kernels find a window's keys, with room for those that have none in
/// the region itself. One thread at a time.
class KeyTables {
 public:
  /// Gives the pool of the rank's device for objects of this size.
  using Pools = std::function<Result<std::shared_ptr<shadow::ShadowPool>>(std::size_t bytes)>;
  explicit KeyTables(Pools pools) : pools_(std::move(pools)) {}

  /// `pieces` as cut_at() asks for them. If not all keys have room in the region the others are in
  /// an object that is added to `beyond`, up to date: it has to live as long as kernels may read
  /// the region.
  Result<device::queue::Region> make(std::uint64_t address, std::uint64_t bytes,
                                     std::span<const KeyedPiece> pieces,
                                     std::vector<shadow::OwnedShadow>& beyond);

 private:
  Pools pools_;
  // By size of their objects. Kept, so that memory which a kernel reads too late is a table still.
  std::map<std::size_t, std::shared_ptr<shadow::ShadowPool>> used_;
};

}  // namespace oriel::comm
