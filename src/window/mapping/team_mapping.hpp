// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "window/mapping/flat_space.hpp"
#include "window/memory/allocation_table.hpp"
#include "window/memory/mappable_memory.hpp"

namespace oriel::window {

/// An allocation as it travels.
struct SegmentInfo {
  AllocationId id;
  std::uint64_t bytes = 0;
  auto operator<=>(const SegmentInfo&) const = default;
};

/// What makes two windows share their mappings: on every rank of the team the same allocations, and
/// between the ranks the same shifts. A vector with one entry for each rank.
struct MappingKey {
  struct Rank {
    /// How much further from the begin of its allocations the window begins than on the rank where
    /// it begins first.
    std::uint64_t shift = 0;
    std::vector<SegmentInfo> segments;
    auto operator<=>(const Rank&) const = default;
  };
  std::vector<Rank> ranks;
  auto operator<=>(const MappingKey&) const = default;
};

/// A part of the slots that one rank has kept in SlotSpace; released when destroyed.
class SlotPlace {
 public:
  SlotPlace() = default;
  SlotPlace(std::shared_ptr<FlatSpace> space, std::size_t offset, std::size_t bytes)
      : space_(std::move(space)), offset_(offset), bytes_(bytes) {}
  SlotPlace(SlotPlace&&) noexcept = default;
  SlotPlace& operator=(SlotPlace&& other) noexcept {
    std::swap(space_, other.space_);
    std::swap(offset_, other.offset_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~SlotPlace() {
    if (space_ != nullptr && bytes_ > 0) space_->slots().release(offset_, bytes_);
  }

  /// Hands over what begins at `offset` of the slots, and keeps what lies before.
  SlotPlace split(std::size_t offset) {
    const std::size_t kept = offset - offset_;
    SlotPlace rest(space_, offset, bytes_ - kept);
    bytes_ = kept;
    return rest;
  }

  std::size_t offset() const { return offset_; }

 private:
  std::shared_ptr<FlatSpace> space_;  // null: nothing is held
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
};

/// The allocations of one key, mapped into all slots of a flat space, as one rank holds them.
/// Shared by all windows of that rank that have the key, of any communicator with the same team.
/// Destroying it unmaps (where no other rank of the process holds the same), then gives the place
/// back. As long as it lives, this rank's allocations count as occupied in AllocationTable.
class TeamMapping {
 public:
  TeamMapping(std::shared_ptr<FlatSpace> space, int index, MappingKey key, SlotPlace place);
  ~TeamMapping();
  TeamMapping(const TeamMapping&) = delete;
  TeamMapping& operator=(const TeamMapping&) = delete;

  /// Where in the slot of each rank the window would begin that begins first in its allocations:
  /// rank r's allocations begin at anchor() - shift of r.
  std::size_t anchor() const { return anchor_; }

  /// Maps every rank's allocations, in the order of the slots; AllocationTable must know them. When
  /// it fails at one of them, those before it are mapped and no others; they go with the object.
  /// Called once.
  Status map_all();

  /// The live mapping of the rank with this index for `key`, or null.
  static std::shared_ptr<TeamMapping> find(const FlatSpace& space, int index,
                                           const MappingKey& key);
  /// Makes `mapping` known to find(), until it is destroyed.
  static void publish(const std::shared_ptr<TeamMapping>& mapping);

 private:
  struct Table;
  static Table& table();
  std::shared_ptr<FlatSpace> space_;
  int index_;
  MappingKey key_;
  SlotPlace place_;
  std::size_t anchor_;
  std::vector<Occupant> occupied_;                  // of this rank's allocations
  std::vector<std::shared_ptr<Mapping>> mappings_;  // destroyed before place_
};

/// The greatest shift of a key: how far the first rank's allocations begin behind the anchor.
std::size_t greatest_shift(const MappingKey& key);
/// The bytes of a slot that the key's allocations take, shifts included.
std::size_t extent_bytes(const MappingKey& key);

}  // namespace oriel::window
