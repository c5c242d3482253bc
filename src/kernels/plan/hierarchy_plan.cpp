// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/hierarchy_plan.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/try.hpp"

namespace oriel::kernels {
namespace {

/// Limits of one-hop calls: bytes from one rank to another, total bytes that a rank receives, and
/// number of ranks.
struct OneHop {
  std::uint64_t bytes;
  std::uint64_t total_bytes;
  std::uint64_t ranks;
};
/// Sizes that suit a backend. A round of a GPU costs about 20 us for the barriers of its CTAs, and
/// each transfer of its NIC 10 us.
struct Tuning {
  OneHop one_hop[3];          ///< by collective
  std::uint64_t unit_bytes;   ///< largest unit
  std::uint64_t split_bytes;  ///< smallest unit to which kRoundsWanted may lead
};
constexpr OneHop kReducedByHosts{4 << 10, 64 << 10, kMostRawSources};
// From about 40 ranks on (docs/scale.md) it is better that the ranks of a node share the messages.
constexpr OneHop kSharedByHosts{16 << 10, 64 << 10, 40};
constexpr OneHop kOfGpus{64 << 10, 1 << 20, kMostRawSources};
constexpr Tuning kHostTuning{{kReducedByHosts, kSharedByHosts, kSharedByHosts}, 64 << 10, 16 << 10};
constexpr Tuning kGpuTuning{{kOfGpus, kOfGpus, kOfGpus}, 512 << 10, 128 << 10};
constexpr const Tuning& tuning_of(Backend backend) {
  return backend == Backend::host ? kHostTuning : kGpuTuning;
}
/// A long call has at least this number of rounds, so that its stages overlap.
constexpr std::uint64_t kRoundsWanted = 4;
/// Bytes of a unit per CTA of a GPU.
constexpr std::uint64_t kBytesOfCta = 16 << 10;
/// Largest useful number of CTAs: more CTAs move no more bytes, and their barriers take longer.
constexpr std::uint64_t kCtasWanted = 32;

// The default ORIEL_SCRATCH_SIZE is the largest allowed value, and suffices up to some thousand
// ranks.
constexpr const char* kScratchHint =
    "do not set ORIEL_SCRATCH_SIZE below its default; if it is not, use communicators of fewer "
    "ranks, or of fewer nodes";

/// Returns the bytes that a region needs for a unit of kUnitQuantum elements, on the rank that
/// needs most.
std::uint64_t bytes_of_unit(HierarchyShape shape, const Grouping& grouping) {
  shape.unit = kUnitQuantum;
  std::uint64_t most = 0;
  for (std::int32_t group = 0; group < grouping.groups; ++group) {
    most = std::max(most, region_layout(shape, grouping.size(group)).bytes);
  }
  return most;
}

Error scratch_too_small(std::uint64_t region_bytes, std::uint64_t needed) {
  return Error(
             ErrorCode::invalid_usage,
             fmt::format("the scratch memory has {} bytes for a round of a collective, but so many "
                         "ranks need {}",
                         region_bytes, needed))
      .with_hint(kScratchHint);
}

}  // namespace

GroupingTables::GroupingTables(const std::vector<std::vector<int>>& groups, int rank)
    : groups_(static_cast<std::int32_t>(groups.size())) {
  std::vector<std::int32_t> begins, members;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    begins.push_back(static_cast<std::int32_t>(members.size()));
    tables_.push_back(static_cast<std::int32_t>(groups[group].size()));
    largest_ = std::max(largest_, tables_.back());
    for (std::size_t index = 0; index < groups[group].size(); ++index) {
      members.push_back(groups[group][index]);
      if (groups[group][index] != rank) continue;
      own_ = static_cast<std::int32_t>(group);
      own_index_ = static_cast<std::int32_t>(index);
    }
  }
  tables_.insert(tables_.end(), begins.begin(), begins.end());
  tables_.insert(tables_.end(), members.begin(), members.end());
}

Grouping GroupingTables::view_at(const std::int32_t* tables) const {
  Grouping grouping;
  grouping.groups = groups_;
  grouping.largest = largest_;
  grouping.own = own_;
  grouping.own_index = own_index_;
  grouping.sizes = tables;
  grouping.begins = tables + groups_;
  grouping.members = tables + 2 * static_cast<std::ptrdiff_t>(groups_);
  return grouping;
}

bool GroupingTables::follows_the_tree() const {
  const Grouping all = view();
  const std::int32_t size = all.size(0);
  if (groups_ > 1 && (size & (size - 1)) != 0) return false;
  for (std::int32_t group = 0, rank = 0; group < groups_; ++group) {
    const bool last = group + 1 == groups_;
    if (last ? all.size(group) > size : all.size(group) != size) return false;
    for (std::int32_t index = 0; index < all.size(group); ++index, ++rank) {
      if (all.member(group, index) != rank) return false;
    }
  }
  return true;
}

Result<HierarchyLayout> make_hierarchy_layout(int ranks, std::uint64_t offset,
                                              std::uint64_t bytes) {
  const std::uint64_t lines = static_cast<std::uint64_t>(ranks) * sizeof(HierarchyLine);
  constexpr std::uint64_t kCounterBytes = 3 * 64;
  const std::uint64_t fixed = kCounterBytes + 2 * lines;
  HierarchyLayout layout;
  layout.counters = offset;
  layout.barrier = offset + 2 * 64;
  layout.lines[0] = offset + kCounterBytes;
  layout.lines[1] = layout.lines[0] + lines;
  layout.total_bytes = bytes;
  if (bytes > fixed) layout.region_bytes = (bytes - fixed) / (2 * kHierarchyDepth) / 64 * 64;
  if (layout.region_bytes == 0) {
    return Error(
               ErrorCode::invalid_usage,
               fmt::format("{} bytes of the scratch memory are too few for the state of {} ranks, "
                           "which take {}",
                           bytes, ranks, fixed))
        .with_hint(kScratchHint);
  }
  layout.regions[0] = layout.lines[1] + lines;
  layout.regions[1] = layout.regions[0] + kHierarchyDepth * layout.region_bytes;
  return layout;
}

namespace {

HierarchyShape shape_of(const HierarchyFacts& facts, const Grouping& grouping, bool raw) {
  HierarchyShape shape;
  shape.groups = grouping.groups;
  shape.group_units = grouping.largest;
  shape.element_bytes = size_of(facts.type);
  shape.partial_bytes = raw ? shape.element_bytes : accumulator_bytes(facts.type);
  shape.reduces = reduces(facts.collective);
  shape.distributes = distributes(facts.collective);
  return shape;
}

int ctas_for(const HierarchyFacts& facts, const HierarchyShape& shape) {
  if (facts.ctas > 0) return std::min(facts.max_ctas, facts.ctas);
  const auto most = static_cast<std::uint64_t>(facts.max_ctas);
  const std::uint64_t wanted = divide_up(shape.unit * shape.element_bytes, kBytesOfCta);
  return static_cast<int>(std::min({most, kCtasWanted, std::max<std::uint64_t>(1, wanted)}));
}

/// Returns whether a call takes one hop: one round, in which each rank sends its input, or a part
/// of it, to all others.
bool fits_one_hop(const HierarchyFacts& facts, const HierarchyLayout& layout, std::uint64_t ranks) {
  const std::uint64_t bytes = facts.count * size_of(facts.type);
  const OneHop& most = tuning_of(facts.backend).one_hop[static_cast<int>(facts.collective)];
  if (bytes > most.bytes || bytes * ranks > most.total_bytes || ranks > most.ranks) return false;
  const std::uint64_t slot = round_up(facts.count, kUnitQuantum) * size_of(facts.type);
  // Slots for data that arrives and data that is being sent.
  const std::uint64_t slots = distributes(facts.collective) ? ranks + 1 : 2 * ranks;
  return slots * slot <= layout.region_bytes;
}

}  // namespace

Result<HierarchyPlan> plan_hierarchy(const HierarchyFacts& facts, const HierarchyLayout& layout,
                                     const GroupingTables& teams, const GroupingTables& ranks) {
  HierarchyPlan plan;
  const auto world = static_cast<std::uint64_t>(ranks.view().groups);
  const bool raw_fits = world <= static_cast<std::uint64_t>(kMostRawSources);
  if (teams.view().groups > 1 && fits_one_hop(facts, layout, world)) {
    plan.grouped_by = GroupedBy::rank;
    plan.one_hop = plan.raw = true;
    plan.rounds = 1;
    plan.shape = shape_of(facts, ranks.view(), true);
    plan.shape.unit = round_up(facts.count, kUnitQuantum);
    plan.ctas = ctas_for(facts, plan.shape);
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
                             kMostRawSources, grouping.groups))
        .with_hint("use communicators of fewer nodes");
  }
  plan.shape = shape_of(facts, grouping, plan.raw);
  const std::uint64_t needed = bytes_of_unit(plan.shape, grouping);
  // A single rank needs no slots.
  const std::uint64_t quanta_most = layout.region_bytes / std::max<std::uint64_t>(1, needed);
  if (quanta_most == 0) return scratch_too_small(layout.region_bytes, needed);
  // Number of units of a round, among which `count` elements are divided.
  const std::uint64_t parts = facts.collective == Collective::all_reduce
                                  ? static_cast<std::uint64_t>(plan.shape.groups) *
                                        static_cast<std::uint64_t>(plan.shape.group_units)
                                  : 1;
  const std::uint64_t each = divide_up(facts.count, parts);
  const Tuning& tuning = tuning_of(facts.backend);
  const std::uint64_t most_bytes =
      facts.unit_bytes_most != 0 ? facts.unit_bytes_most : tuning.unit_bytes;
  const std::uint64_t quantum_bytes = kUnitQuantum * plan.shape.element_bytes;
  std::uint64_t quanta =
      std::min(quanta_most, std::max<std::uint64_t>(1, most_bytes / quantum_bytes));
  const std::uint64_t split = std::max(divide_up(tuning.split_bytes, quantum_bytes),
                                       divide_up(divide_up(each, kRoundsWanted), kUnitQuantum));
  quanta = std::min({quanta, split, divide_up(each, kUnitQuantum)});
  plan.shape.unit = std::max<std::uint64_t>(1, quanta) * kUnitQuantum;
  plan.rounds = divide_up(facts.count, parts * plan.shape.unit);
  plan.ctas = ctas_for(facts, plan.shape);
  return plan;
}

}  // namespace oriel::kernels
