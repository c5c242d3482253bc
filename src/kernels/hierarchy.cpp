// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/hierarchy.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::kernels {
namespace {

/// All-reduces of so many bytes at most go in one hop, if all ranks' together are so many at most.
constexpr std::uint64_t kOneHopBytes = 4 << 10;
constexpr std::uint64_t kOneHopTotalBytes = 64 << 10;
/// A long call goes in so many rounds at least, so that its stages overlap; but in no smaller units
/// for that.
constexpr std::uint64_t kRoundsWanted = 4;
constexpr std::uint64_t kSplitBytes = 16 << 10;

constexpr std::uint64_t divide_up(std::uint64_t a, std::uint64_t b) {
  return (a + b - 1) / b;
}
constexpr std::uint64_t round_up(std::uint64_t a, std::uint64_t unit) {
  return divide_up(a, unit) * unit;
}

/// Bytes that a region needs for each element of a unit, on the rank that needs most.
std::uint64_t bytes_of_unit(HierarchyShape shape, const Grouping& grouping) {
  shape.unit = kUnitQuantum;
  std::uint64_t most = 0;
  for (std::int32_t group = 0; group < grouping.groups; ++group) {
    most = std::max(most, region_layout(shape, grouping.size(group)).bytes);
  }
  return most;
}

Error no_room(std::uint64_t region_bytes, std::uint64_t needed) {
  return Error(
             ErrorCode::invalid_usage,
             fmt::format("the scratch memory has {} bytes for a round of a collective, but so many "
                         "ranks need {}",
                         region_bytes, needed))
      .with_hint("set a larger ORIEL_SCRATCH_SIZE");
}

}  // namespace

GroupingTables::GroupingTables(const std::vector<std::vector<int>>& groups, int rank) {
  for (std::size_t group = 0; group < groups.size(); ++group) {
    begins_.push_back(static_cast<std::int32_t>(members_.size()));
    sizes_.push_back(static_cast<std::int32_t>(groups[group].size()));
    largest_ = std::max(largest_, sizes_.back());
    for (std::size_t index = 0; index < groups[group].size(); ++index) {
      members_.push_back(groups[group][index]);
      if (groups[group][index] != rank) continue;
      own_ = static_cast<std::int32_t>(group);
      own_index_ = static_cast<std::int32_t>(index);
    }
  }
}

Grouping GroupingTables::view() const {
  Grouping grouping;
  grouping.groups = static_cast<std::int32_t>(sizes_.size());
  grouping.largest = largest_;
  grouping.own = own_;
  grouping.own_index = own_index_;
  grouping.sizes = sizes_.data();
  grouping.begins = begins_.data();
  grouping.members = members_.data();
  return grouping;
}

bool GroupingTables::follows_the_tree() const {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] != static_cast<std::int32_t>(i)) return false;
  }
  const std::int32_t size = sizes_.front();
  if (sizes_.size() > 1 && (size & (size - 1)) != 0) return false;
  for (std::size_t group = 0; group < sizes_.size(); ++group) {
    const bool last = group + 1 == sizes_.size();
    if (last ? sizes_[group] > size : sizes_[group] != size) return false;
  }
  return true;
}

Result<HierarchyLayout> make_hierarchy_layout(int ranks, std::uint64_t offset,
                                              std::uint64_t bytes) {
  const std::uint64_t lines = static_cast<std::uint64_t>(ranks) * sizeof(HierarchyLine);
  constexpr std::uint64_t kCounterBytes = 2 * 64;
  const std::uint64_t fixed = kCounterBytes + 2 * lines;
  HierarchyLayout layout;
  layout.counters = offset;
  layout.lines[0] = offset + kCounterBytes;
  layout.lines[1] = layout.lines[0] + lines;
  layout.total_bytes = bytes;
  if (bytes > fixed) layout.region_bytes = (bytes - fixed) / (2 * kHierarchyDepth) / 64 * 64;
  if (layout.region_bytes == 0) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} bytes of the scratch memory are too few for what {} ranks tell "
                             "each other",
                             bytes, ranks))
        .with_hint("set a larger ORIEL_SCRATCH_SIZE");
  }
  layout.regions[0] = layout.lines[1] + lines;
  layout.regions[1] = layout.regions[0] + kHierarchyDepth * layout.region_bytes;
  return layout;
}

namespace {

HierarchyShape shape_of(const HierarchyFacts& facts, const Grouping& grouping, bool raw) {
  HierarchyShape shape;
  shape.groups = grouping.groups;
  shape.lanes = grouping.largest;
  shape.element_bytes = size_of(facts.type);
  shape.partial_bytes = raw ? shape.element_bytes : accumulator_bytes(facts.type);
  shape.reduces = reduces(facts.collective);
  shape.distributes = distributes(facts.collective);
  return shape;
}

/// All of a message in one round, each rank's input sent to all.
bool fits_one_hop(const HierarchyFacts& facts, const HierarchyLayout& layout, std::uint64_t ranks) {
  if (facts.collective != Collective::all_reduce) return false;
  const std::uint64_t bytes = facts.count * size_of(facts.type);
  if (bytes > kOneHopBytes || bytes * ranks > kOneHopTotalBytes) return false;
  const std::uint64_t slot = round_up(facts.count, kUnitQuantum) * size_of(facts.type);
  return (ranks + 1) * slot <= layout.region_bytes;
}

}  // namespace

Result<HierarchyPlan> plan_hierarchy(const HierarchyFacts& facts, const HierarchyLayout& layout,
                                     const GroupingTables& teams, const GroupingTables& ranks) {
  HierarchyPlan plan;
  const auto world = static_cast<std::uint64_t>(ranks.view().groups);
  const bool raw_fits = world <= static_cast<std::uint64_t>(kMostRawSources);
  if (raw_fits && teams.view().groups > 1 && fits_one_hop(facts, layout, world)) {
    plan.grouped_by = GroupedBy::rank;
    plan.one_hop = plan.raw = true;
    plan.rounds = 1;
    plan.shape = shape_of(facts, ranks.view(), true);
    plan.shape.unit = round_up(facts.count, kUnitQuantum);
    return plan;
  }
  if (facts.deterministic && reduces(facts.collective) && !teams.follows_the_tree()) {
    plan.grouped_by = GroupedBy::rank;
    plan.raw = true;
    if (!raw_fits) {
      return Error(
                 ErrorCode::invalid_usage,
                 fmt::format("with ORIEL_DETERMINISTIC=1 at most {} ranks can reduce, unless each "
                             "node's ranks are a subtree; this communicator has {}",
                             kMostRawSources, world))
          .with_hint("place a power of two of consecutive ranks on each node");
    }
  }
  const Grouping grouping = plan.raw ? ranks.view() : teams.view();
  if (reduces(facts.collective) && grouping.groups > kMostRawSources) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("at most {} nodes can reduce; this communicator has {}",
                             kMostRawSources, grouping.groups));
  }
  plan.shape = shape_of(facts, grouping, plan.raw);
  const std::uint64_t needed = bytes_of_unit(plan.shape, grouping);
  // A single rank needs none.
  const std::uint64_t room = layout.region_bytes / std::max<std::uint64_t>(1, needed);
  if (room == 0) return no_room(layout.region_bytes, needed);
  // What one unit of each lane and group has together.
  const std::uint64_t parts = facts.collective == Collective::all_reduce
                                  ? static_cast<std::uint64_t>(plan.shape.groups) *
                                        static_cast<std::uint64_t>(plan.shape.lanes)
                                  : 1;
  const std::uint64_t each = divide_up(facts.count, parts);
  const std::uint64_t most_bytes = facts.unit_bytes_most != 0 ? facts.unit_bytes_most : kUnitBytes;
  const std::uint64_t quantum_bytes = kUnitQuantum * plan.shape.element_bytes;
  std::uint64_t quanta = std::min(room, std::max<std::uint64_t>(1, most_bytes / quantum_bytes));
  const std::uint64_t split = std::max(divide_up(kSplitBytes, quantum_bytes),
                                       divide_up(divide_up(each, kRoundsWanted), kUnitQuantum));
  quanta = std::min({quanta, split, divide_up(each, kUnitQuantum)});
  plan.shape.unit = std::max<std::uint64_t>(1, quanta) * kUnitQuantum;
  plan.rounds = divide_up(facts.count, parts * plan.shape.unit);
  return plan;
}

}  // namespace oriel::kernels
