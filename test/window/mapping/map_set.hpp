// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "base/process_number.hpp"
#include "window/mapping/team_mapping.hpp"
#include "window/memory/allocation_table.hpp"

namespace oriel::window {

/// What a team of 3 ranks with 2 allocations each maps, with all of them in this process.
class MapSet {
 public:
  static constexpr int kRanks = 3;
  static constexpr int kAllocations = 2 * kRanks;

  MapSet(Memory& memory, int device, std::size_t bytes) : memory_(memory) {
    const std::vector<TeamMember> team(kRanks, {process_number(), device});
    auto space = FlatSpace::acquire(memory, team, kSlotUnitBytes);
    REQUIRE(space.ok());
    space_ = std::move(space).value();
    key_.ranks.resize(kRanks);
    for (int i = 0; i < kAllocations; ++i) {
      auto pointer = memory.allocate(bytes);
      REQUIRE(pointer.ok());
      pointers_.push_back(pointer.value());
      auto found = memory.find_segments(pointer.value(), bytes);
      REQUIRE(found.ok());
      held_.push_back(AllocationTable::instance().publish(found->front().allocation));
      key_.ranks[static_cast<std::size_t>(i) / 2].segments.push_back(
          {held_.back()->id(), held_.back()->bytes()});
    }
  }
  ~MapSet() {
    held_.clear();
    space_.reset();
    for (void* const pointer : pointers_) CHECK(memory_.free(pointer).ok());
  }
  MapSet(const MapSet&) = delete;
  MapSet& operator=(const MapSet&) = delete;

  FlatSpace& space() { return *space_; }

  /// A mapping of rank 0 that has mapped nothing yet, at the begin of the slots.
  std::unique_ptr<TeamMapping> make() {
    return std::make_unique<TeamMapping>(space_, 0, key_, SlotPlace());
  }

  /// The books of the space say that the first `count` allocations are mapped,
  /// back to back in their slots, and no others.
  void check_books(std::size_t count) {
    const auto parts = space_->mapped();
    REQUIRE(parts.size() == count);
    for (std::size_t i = 0; i < count; ++i) {
      const SegmentInfo& segment = key_.ranks[i / 2].segments[i % 2];
      CHECK(parts[i] == FlatSpace::MappedPart{static_cast<int>(i / 2), i % 2 * segment.bytes,
                                              segment.bytes, segment.id, 1});
    }
  }

 private:
  Memory& memory_;
  std::shared_ptr<FlatSpace> space_;
  MappingKey key_;
  std::vector<void*> pointers_;
  std::vector<AllocationRef> held_;
};

}  // namespace oriel::window
