// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/comm.hpp"
#include "oriel/device/config.hpp"

#include "kernels/algorithms/lines.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {

/// Peers of a rank in a call of Hierarchy, elements of each unit, and offsets of data and words in
/// the ranks' control memory.
class HierarchyPlaces {
 protected:
  ORIEL_DEVICE_FN explicit HierarchyPlaces(const HierarchyArguments& arguments)
      : arguments_(arguments),
        comm_(arguments.comm),
        grouping_(arguments.grouping),
        shape_(arguments.plan.shape),
        kind_(static_cast<int>(arguments.plan.grouped_by)),
        mine_(region_layout(shape_, grouping_.size(grouping_.own))),
        size_(grouping_.size(grouping_.own)),
        keeps_result_(arguments.output != nullptr) {}

  /// Elements of a unit: where they begin in the input (of a rank that has them) and in the output,
  /// and how many.
  struct Span {
    std::uint64_t in;
    std::uint64_t out;
    std::uint64_t count;
  };

  ORIEL_DEVICE_FN std::uint64_t rounds() const { return arguments_.plan.rounds; }
  ORIEL_DEVICE_FN bool is_all_reduce() const {
    return arguments_.collective == Collective::all_reduce ||
           arguments_.collective == Collective::reduce;
  }
  ORIEL_DEVICE_FN std::uint64_t* counter(int kind) const {
    return reinterpret_cast<std::uint64_t*>(comm_.control(
        comm_.lsa_rank, arguments_.layout.counters + static_cast<unsigned>(kind) * 64));
  }

  ORIEL_DEVICE_FN std::int32_t units_of(std::int32_t group) const {
    return is_all_reduce() ? shape_.group_units : grouping_.size(group);
  }
  /// Returns the index in `group` of the rank that serves a unit, or finishes it if `group` is the
  /// unit's own group.
  ORIEL_DEVICE_FN std::int32_t server(std::int32_t group, std::uint64_t round,
                                      std::int32_t unit) const {
    const auto size = static_cast<std::uint64_t>(grouping_.size(group));
    const std::uint64_t chunk =
        is_all_reduce() ? round * static_cast<std::uint64_t>(shape_.group_units) : 0;
    return static_cast<std::int32_t>((chunk + static_cast<std::uint64_t>(unit)) % size);
  }
  ORIEL_DEVICE_FN bool serves(std::uint64_t round, std::int32_t unit) const {
    return server(grouping_.own, round, unit) == grouping_.own_index;
  }
  ORIEL_DEVICE_FN Span span(std::uint64_t round, std::int32_t group, std::int32_t unit) const {
    const std::uint64_t count = arguments_.count;
    if (is_all_reduce()) {
      const std::uint64_t chunk =
          round * static_cast<std::uint64_t>(shape_.group_units) + static_cast<std::uint64_t>(unit);
      const std::uint64_t global_unit =
          chunk * static_cast<std::uint64_t>(shape_.groups) + static_cast<std::uint64_t>(group);
      const std::uint64_t first = smaller(global_unit * shape_.unit, count);
      return {first, first, smaller(shape_.unit, count - first)};
    }
    const std::uint64_t first = smaller(round * shape_.unit, count);
    const std::uint64_t length = smaller(shape_.unit, count - first);
    const std::uint64_t block = static_cast<std::uint64_t>(grouping_.member(group, unit)) * count;
    if (shape_.reduces) return {block + first, first, length};
    return {first, block + first, length};
  }

  // Offsets in the control memory.
  ORIEL_DEVICE_FN std::uint64_t region(std::uint64_t round) const {
    return arguments_.layout.regions[kind_] +
           (base_ + round) % kHierarchyDepth * arguments_.layout.region_bytes;
  }
  ORIEL_DEVICE_FN std::uint64_t plain(std::uint64_t slots) const {
    return slots * shape_.unit * shape_.element_bytes;
  }
  ORIEL_DEVICE_FN std::uint64_t sums(std::uint64_t slots) const {
    return slots * shape_.unit * shape_.partial_bytes;
  }
  static ORIEL_DEVICE_FN std::uint64_t index(std::int32_t a, std::int32_t extent, std::int32_t b) {
    return static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(extent) +
           static_cast<std::uint64_t>(b);
  }
  ORIEL_DEVICE_FN std::byte* here(std::uint64_t offset) const {
    return reinterpret_cast<std::byte*>(comm_.control(comm_.lsa_rank, offset));
  }
  ORIEL_DEVICE_FN std::uint64_t input_slot(std::uint64_t round, std::int32_t group,
                                           std::int32_t unit, std::int32_t source) const {
    const std::uint64_t place = index(group, mine_.places, unit / size_);
    return region(round) + mine_.inputs +
           plain(place * static_cast<std::uint64_t>(size_) + static_cast<std::uint64_t>(source));
  }
  ORIEL_DEVICE_FN std::uint64_t staged_slot(std::uint64_t round, std::int32_t group,
                                            std::int32_t unit) const {
    return region(round) + mine_.staged + sums(index(group, mine_.places, unit / size_));
  }
  /// Slot for a result that is being sent, or that this rank does not keep.
  ORIEL_DEVICE_FN std::uint64_t finished_slot(std::uint64_t round, std::int32_t unit) const {
    return region(round) + mine_.finished + plain(static_cast<std::uint64_t>(unit / size_));
  }
  ORIEL_DEVICE_FN std::uint64_t copy_slot(std::uint64_t round, std::int32_t group,
                                          std::int32_t unit) const {
    return region(round) + mine_.copies + plain(index(group, shape_.group_units, unit));
  }
  /// Offset at the rank of `group` that finishes unit `unit`. In result_slot: at the rank of
  /// `group` that serves unit `unit` of group `from`.
  ORIEL_DEVICE_FN std::uint64_t partial_slot(std::uint64_t round, std::int32_t group,
                                             std::int32_t unit, std::int32_t source) const {
    const RegionLayout there = region_layout(shape_, grouping_.size(group));
    return region(round) + there.partials +
           sums(index(unit / grouping_.size(group), shape_.groups, source));
  }
  ORIEL_DEVICE_FN std::uint64_t result_slot(std::uint64_t round, std::int32_t group,
                                            std::int32_t from, std::int32_t unit) const {
    const RegionLayout there = region_layout(shape_, grouping_.size(group));
    return region(round) + there.results +
           plain(index(from, there.places, unit / grouping_.size(group)));
  }

  /// Slot of a call that takes one hop. First come the data from each rank; behind them, the data
  /// that this rank is sending. Each group is one rank, in rank order.
  ORIEL_DEVICE_FN std::uint64_t hop_slot(std::int32_t number) const {
    return region(0) + plain(static_cast<std::uint64_t>(number));
  }

  // Loops over the peers of this rank. `action` returns false to stop.
  template <class Action>
  ORIEL_DEVICE_FN bool each_of_group(const Action& action) const {
    for (std::int32_t distance = 1; distance < size_; ++distance) {
      const std::int32_t index = (grouping_.own_index + distance) % size_;
      if (!action(grouping_.member(grouping_.own, index))) return false;
    }
    return true;
  }
  /// Visits the ranks of other groups that share a unit with this rank. Their indices equal this
  /// rank's index modulo the greatest common divisor of both group sizes.
  template <class Action>
  ORIEL_DEVICE_FN bool each_across(const Action& action) const {
    for (std::int32_t distance = 1; distance < grouping_.groups; ++distance) {
      const std::int32_t group = (grouping_.own + distance) % grouping_.groups;
      const std::int32_t step = common_divisor(grouping_.size(group), size_);
      for (std::int32_t i = grouping_.own_index % step; i < grouping_.size(group); i += step) {
        if (!action(grouping_.member(group, i))) return false;
      }
    }
    return true;
  }
  static ORIEL_DEVICE_FN std::int32_t common_divisor(std::int32_t a, std::int32_t b) {
    while (b != 0) {
      const std::int32_t rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  }

  ORIEL_DEVICE_FN bool is_near(std::int32_t peer) const { return comm_.lsa_index_of[peer] >= 0; }
  ORIEL_DEVICE_FN std::byte* at(std::int32_t peer, std::uint64_t offset) const {
    return reinterpret_cast<std::byte*>(comm_.control(comm_.lsa_index_of[peer], offset));
  }

  const HierarchyArguments& arguments_;
  const device::CommView& comm_;
  const Grouping& grouping_;
  const HierarchyShape& shape_;
  int kind_;
  RegionLayout mine_;
  std::int32_t size_;
  bool keeps_result_;       // false at a rank that takes part in a reduce but is not its root
  std::uint64_t base_ = 0;  // rounds of earlier calls
};

}  // namespace oriel::kernels
