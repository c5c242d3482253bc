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

/// Describes an allocation in a message.
struct SegmentInfo {
  AllocationId id;
  std::uint64_t bytes = 0;
  auto operator<=>(const SegmentInfo&) const = default;
};

/// Identifies mappings that windows can share. Two windows share them if every rank of the team has
/// the same allocations and shifts for both. Has one entry for each rank.
struct MappingKey {
  struct Rank {
    /// Offset of the window in this rank's allocations minus the smallest offset of all ranks.
    std::uint64_t shift = 0;
    std::vector<SegmentInfo> segments;
    auto operator<=>(const Rank&) const = default;
  };
  std::vector<Rank> ranks;
  auto operator<=>(const MappingKey&) const = default;
};

/// A range of the slots that one rank has kept in SlotSpace; released when destroyed.
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

  /// Returns the part from `offset` of the slots on, and keeps the part before it.
  SlotPlace split(std::size_t offset) {
    const std::size_t kept = offset - offset_;
    SlotPlace rest(space_, offset, bytes_ - kept);
    bytes_ = kept;
    return rest;
  }

  std::size_t offset() const { return offset_; }

 private:
  std::shared_ptr<FlatSpace> space_;  // null: empty
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
};

/// Maps the allocations of one key into all slots of a flat space, for one rank. All windows of the
/// rank with this key share the mapping, across communicators with the same team. The destructor
/// unmaps allocations that no other rank of the process holds mapped, then releases the place.
/// While the object lives, this rank's allocations count as occupied in AllocationTable.
class TeamMapping {
 public:
  TeamMapping(std::shared_ptr<FlatSpace> space, int index, MappingKey key, SlotPlace place);
  ~TeamMapping();
  TeamMapping(const TeamMapping&) = delete;
  TeamMapping& operator=(const TeamMapping&) = delete;

  /// Returns the slot offset at which the allocations of ranks with shift 0 begin. Rank r's
  /// allocations begin at anchor() - shift of r.
  std::size_t anchor() const { return anchor_; }

  /// Maps every rank's allocations in slot order; AllocationTable must know them. If one fails, the
  /// earlier ones stay mapped until the object is destroyed. Call it once.
  Status map_all();

  /// Returns the live mapping of the rank with this index for `key`, or null.
  static std::shared_ptr<TeamMapping> find(const FlatSpace& space, int index,
                                           const MappingKey& key);
  /// Makes `mapping` visible to find() until it is destroyed.
  static void publish(const std::shared_ptr<TeamMapping>& mapping);

 private:
  struct Table;
  static Table& table();
  std::shared_ptr<FlatSpace> space_;
  int index_;
  MappingKey key_;
  SlotPlace place_;
  std::size_t anchor_;
  std::vector<Occupant> occupied_;                  // this rank's allocations
  std::vector<std::shared_ptr<Mapping>> mappings_;  // destroyed before place_
};

/// Returns the greatest shift of a key: the distance from the begin of the place to the anchor.
std::size_t greatest_shift(const MappingKey& key);
/// Returns the bytes of a slot that the key's allocations take, shifts included.
std::size_t extent_bytes(const MappingKey& key);

}  // namespace oriel::window
