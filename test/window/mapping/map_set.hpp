// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <catch2/catch.hpp>

#include "base/process_number.hpp"
#include "support/fail_each_call.hpp"
#include "window/mapping/space_state.hpp"
#include "window/mapping/team_mapping.hpp"
#include "window/memory/allocation_table.hpp"

namespace oriel::window {

/// Maps the memory of a team of 3 ranks with 2 allocations each, all in this process.
class MapSet {
 public:
  static constexpr int kRanks = 3;
  static constexpr std::size_t kAllocations = 2 * kRanks;

  explicit MapSet(Memory& memory) : memory_(memory) {
    const std::vector<TeamMember> team(kRanks, {process_number(), memory.device()});
    auto space = FlatSpace::acquire(memory, team, kSlotUnitBytes);
    REQUIRE(space.ok());
    space_ = std::move(space).value();
    key_.ranks.resize(kRanks);
    for (std::size_t i = 0; i < kAllocations; ++i) {
      auto pointer = memory.allocate(memory.granularity());
      REQUIRE(pointer.ok());
      pointers_.push_back(static_cast<std::byte*>(pointer.value()));
      auto found = memory.find_segments(pointer.value(), 1);
      REQUIRE(found.ok());
      held_.push_back(AllocationTable::instance().publish(found->front().allocation));
      key_.ranks[i / 2].segments.push_back({held_.back()->id(), held_.back()->bytes()});
    }
  }
  ~MapSet() {
    held_.clear();
    space_.reset();
    for (void* const pointer : pointers_) CHECK(memory_.free(pointer).ok());
  }
  MapSet(const MapSet&) = delete;
  MapSet& operator=(const MapSet&) = delete;

  /// Creates a mapping for rank 0 at the start of the slots; nothing is mapped yet.
  std::unique_ptr<TeamMapping> make() {
    return std::make_unique<TeamMapping>(space_, 0, key_, SlotPlace());
  }

  /// Returns the number of mapped allocations. Checks that these are the first ones, back to back
  /// in their slots.
  std::size_t mapped() const {
    const auto parts = mapped_parts(space_->base(), kRanks * kSlotUnitBytes);
    const std::size_t bytes = memory_.granularity();
    REQUIRE(parts.size() <= kAllocations);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CHECK(parts[i].offset == i / 2 * kSlotUnitBytes + i % 2 * bytes);
      CHECK(parts[i].bytes == bytes);
      CHECK(parts[i].inode == mapped_parts(pointers_[i], 1).at(0).inode);
    }
    return parts.size();
  }

 private:
  Memory& memory_;
  std::shared_ptr<FlatSpace> space_;
  MappingKey key_;
  std::vector<std::byte*> pointers_;
  std::vector<AllocationRef> held_;
};

/// Fails each system or driver call of a mapping in turn with `status`. Exactly the allocations
/// before the failure are mapped; they are unmapped with the mapping.
template <typename Faults>
void check_each_failed_call(Memory& memory, int status) {
  MapSet set(memory);
  std::unique_ptr<TeamMapping> mapping;
  bool seen[MapSet::kAllocations] = {};
  test::fail_each_call(
      status,
      [&](test::FaultPlan& plan) {
        mapping = set.make();
        const Faults faults(plan);
        return mapping->map_all();
      },
      [&](const test::FaultPlan& plan, const Status& outcome) {
        REQUIRE(plan.hit() == (plan.fail_at > 0));
        const std::size_t mapped = set.mapped();
        CHECK(outcome.ok() == (mapped == MapSet::kAllocations));
        if (!outcome.ok()) seen[mapped] = true;
        mapping.reset();
        CHECK(set.mapped() == 0);
      });
  for (const bool one : seen) CHECK(one);
  const auto again = set.make();
  CHECK(again->map_all().ok());
  CHECK(set.mapped() == MapSet::kAllocations);
}

/// A second mapping of mapped allocations makes no call. They stay mapped when the first one is
/// destroyed.
template <typename Faults>
void check_mapped_again(Memory& memory) {
  MapSet set(memory);
  auto first = set.make();
  REQUIRE(first->map_all().ok());
  auto second = set.make();
  test::FaultPlan count;
  {
    const Faults faults(count);
    REQUIRE(second->map_all().ok());
    first.reset();
  }
  CHECK(count.calls == 0);
  CHECK(set.mapped() == MapSet::kAllocations);
  second.reset();
  CHECK(set.mapped() == 0);
}

}  // namespace oriel::window
