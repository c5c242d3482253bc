// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oriel/device/comm.hpp"
#include "oriel/device/config.hpp"
#include "oriel/device/rounding.hpp"
#include "oriel/error.hpp"
#include "oriel/types.hpp"

#include "kernels/plan/arguments.hpp"
#include "kernels/plan/collective.hpp"

/// Plans all-reduces, reduces, reduce-scatters and all-gathers among ranks of several LSA teams.
/// All use one algorithm (algorithms/hierarchy.hpp). CPU ranks of one team also use the algorithm
/// for some reduce-scatters. This header has its place in the scratch memory and its plan.
namespace oriel::kernels {

/// Returns the bytes of the accumulator of one element of this type.
constexpr std::uint64_t accumulator_bytes(DataType type) {
  const bool is_small_float = type == DataType::f16 || type == DataType::bf16 ||
                              type == DataType::e4m3 || type == DataType::e5m2;
  return is_small_float ? sizeof(float) : size_of(type);
}

/// A partition of all ranks into groups that exchange with each other: the LSA teams, or groups of
/// one rank. The tables lie in memory of the device that runs the algorithm.
struct Grouping {
  std::int32_t groups = 1;
  std::int32_t largest = 1;               ///< ranks of the largest group
  std::int32_t own = 0;                   ///< group of this rank
  std::int32_t own_index = 0;             ///< index of this rank in its group
  const std::int32_t* sizes = nullptr;    ///< by group
  const std::int32_t* begins = nullptr;   ///< by group: index of its first member in `members`
  const std::int32_t* members = nullptr;  ///< world ranks, group after group

  [[nodiscard]] ORIEL_DEVICE_FN std::int32_t size(std::int32_t group) const { return sizes[group]; }
  [[nodiscard]] ORIEL_DEVICE_FN std::int32_t member(std::int32_t group, std::int32_t index) const {
    return members[begins[group] + index];
  }
};

/// A Grouping that owns its tables.
class GroupingTables {
 public:
  GroupingTables() = default;
  /// Builds the tables of `groups`, each a list of world ranks. `rank` is in one of them.
  GroupingTables(const std::vector<std::vector<int>>& groups, int rank);
  GroupingTables(const GroupingTables&) = delete;
  GroupingTables& operator=(const GroupingTables&) = delete;
  GroupingTables(GroupingTables&&) = default;
  GroupingTables& operator=(GroupingTables&&) = default;

  /// Returns a Grouping that is valid while the tables exist, even after they have been moved.
  Grouping view() const { return view_at(tables_.data()); }
  /// Returns a Grouping that uses a copy of tables() at `tables`.
  Grouping view_at(const std::int32_t* tables) const;
  const std::vector<std::int32_t>& tables() const { return tables_; }
  /// Returns whether folding within each group, then over the groups in order, equals the fold over
  /// all ranks (reduce.hpp). This holds if the groups are runs of consecutive ranks, all of the
  /// same power of two in size, except for a shorter last group.
  bool follows_the_tree() const;

 private:
  std::vector<std::int32_t> tables_;  // sizes, begins, members
  std::int32_t groups_ = 0, largest_ = 1, own_ = 0, own_index_ = 0;
};

/// Progress words of one rank at another, in the memory of the other. Only the first rank writes
/// them. Each word holds `rounds << kSignatureBits | signature` of the call.
struct alignas(64) HierarchyLine {
  std::uint64_t inputs;    ///< rounds whose inputs have arrived, within the group
  std::uint64_t partials;  ///< rounds whose sums have arrived, from other groups
  std::uint64_t results;   ///< rounds whose results have arrived, from other groups
  std::uint64_t copies;    ///< rounds whose results have arrived, within the group
  std::uint64_t done;      ///< rounds that it has ended: their slots are free again
  std::uint64_t spare[3];
};
static_assert(sizeof(HierarchyLine) == 64);

/// Barrier of the CTAs of a kernel (cuda/grid.cuh). Initially zero.
struct GridBarrier {
  std::uint32_t arrived;
  std::uint32_t failed;
};

/// Number of rounds for whose data there is room at once: see Hierarchy.
inline constexpr std::uint64_t kHierarchyDepth = 6;
/// Largest number of inputs, or of partial sums of groups, that one rank combines in one fold.
inline constexpr int kMostRawSources = 4096;
/// Units are multiples of this number of elements, so that slots are aligned to cache lines.
inline constexpr std::uint64_t kUnitQuantum = 64;

/// Kinds of groups that exchange: LSA teams, or single ranks.
enum class GroupedBy : std::uint8_t { team = 0, rank = 1 };

/// Offsets in bytes from the start of the scratch memory, the same on all ranks of the
/// communicator. Each kind of groups has its own parts, since the peers whose progress a rank knows
/// differ.
struct HierarchyLayout {
  std::uint64_t counters = 0;     ///< two words a cache line apart: ended rounds, by kind
  std::uint64_t barrier = 0;      ///< a GridBarrier
  std::uint64_t lines[2] = {};    ///< by kind: a HierarchyLine of each world rank
  std::uint64_t regions[2] = {};  ///< by kind: kHierarchyDepth regions
  std::uint64_t region_bytes = 0;
  std::uint64_t total_bytes = 0;  ///< bytes of all parts
};
/// Divides `bytes` from `offset` on. Returns invalid_usage if `bytes` is too small for `ranks`
/// ranks.
Result<HierarchyLayout> make_hierarchy_layout(int ranks, std::uint64_t offset, std::uint64_t bytes);

/// Cut of one call into units. A unit is the data that one rank finishes at a time.
struct HierarchyShape {
  std::int32_t groups = 1;
  std::int32_t group_units = 1;  ///< most units of a group in a round
  std::uint64_t unit = 0;        ///< elements
  std::uint64_t element_bytes = 1;
  std::uint64_t partial_bytes = 1;  ///< bytes per element between groups: accumulator or raw
  bool reduces = false;
  bool distributes = false;
};

/// Offsets of the slots inside a region, at a rank whose group has `size` ranks. The rank serves
/// every size-th unit of a group. The slots of unit j are at place j / size.
struct RegionLayout {
  std::int32_t places = 1;     ///< most units that one rank of the group serves
  std::uint64_t inputs = 0;    ///< [group][place][index in own group]: inputs from the own group
  std::uint64_t partials = 0;  ///< [place][group]: sums for units of the own group
  std::uint64_t staged = 0;    ///< [group][place]: own sums that are being sent
  std::uint64_t finished = 0;  ///< [place]: own results that are being sent
  std::uint64_t results = 0;   ///< [group][place]: results of units of other groups
  std::uint64_t copies = 0;    ///< [group][unit]: results from the own group
  std::uint64_t bytes = 0;
};

ORIEL_DEVICE_FN RegionLayout region_layout(const HierarchyShape& shape, std::int32_t size) {
  RegionLayout layout;
  layout.places = device::divide_up(shape.group_units, size);
  const auto groups = static_cast<std::uint64_t>(shape.groups);
  const auto places = static_cast<std::uint64_t>(layout.places);
  const std::uint64_t plain = shape.unit * shape.element_bytes;
  const std::uint64_t sum = shape.unit * shape.partial_bytes;
  const bool apart = shape.groups > 1;
  std::uint64_t at = 0;
  layout.inputs = at;
  if (shape.reduces && size > 1) at += groups * places * static_cast<std::uint64_t>(size) * plain;
  layout.partials = at;
  if (shape.reduces && apart) at += places * groups * sum;
  layout.staged = at;
  if (shape.reduces && apart) at += groups * places * sum;
  layout.finished = at;
  if (shape.distributes && apart) at += places * plain;
  layout.results = at;
  if (shape.distributes && apart) at += groups * places * plain;
  layout.copies = at;
  if (shape.distributes && size > 1) {
    at += groups * static_cast<std::uint64_t>(shape.group_units) * plain;
  }
  layout.bytes = at;
  return layout;
}

/// Plan of one call, computed from facts that are the same on all ranks.
struct HierarchyPlan {
  GroupedBy grouped_by = GroupedBy::team;
  bool one_hop = false;  ///< every rank sends its input, or a part, directly to all
  bool raw = false;      ///< groups, of one rank each, send inputs instead of sums
  std::uint64_t rounds = 0;
  int ctas = 1;  ///< CTAs of a GPU
  HierarchyShape shape;
};

/// Facts on which a plan depends. A reduce is planned as an all-reduce.
struct HierarchyFacts {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::u8;
  std::uint64_t count = 0;  ///< elements: all-reduce: all; else what each rank has or gets
  bool deterministic = false;
  std::uint64_t unit_bytes_most = 0;  ///< largest unit; 0: the backend's default
  Backend backend = Backend::host;
  int ctas = 0;      ///< CTAs of a GPU; 0: chosen from the size of a unit
  int max_ctas = 1;  ///< most CTAs that run at once
};

/// Plans one call. `teams` and `ranks` are the two groupings. Returns invalid_usage if the scratch
/// memory has no room for the smallest units. Also if more than kMostRawSources inputs or sums
/// would meet in one fold.
Result<HierarchyPlan> plan_hierarchy(const HierarchyFacts& facts, const HierarchyLayout& layout,
                                     const GroupingTables& teams, const GroupingTables& ranks);

/// Place from which the rank's NIC reads a user buffer.
struct NicSource {
  const device::NetworkWindow* window = nullptr;  ///< holds all of the buffer; null: no window does
  std::uint64_t offset = 0;                       ///< offset of the buffer in the window
};

/// Arguments of one call.
struct HierarchyArguments {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;           ///< null if this rank does not keep the result of a reduce
  std::uint64_t count = 0;               ///< see HierarchyFacts::count
  std::uint64_t scalar_bits = 0;         ///< this rank's scalar of a pre-multiplied sum: its bytes,
  const void* scalar_pointer = nullptr;  ///< or the address from which a GPU reads it
  std::uint32_t signature = 0;           ///< below 2^kSignatureBits, equal if ranks agree
  /// Offsets in the scratch memory; GPUs of one team only, else 0. They lead to the words in which
  /// all-reduces exchange signatures, and to the count of calls that did so (signatures.cuh).
  std::uint64_t signatures = 0;
  std::uint64_t signature_calls = 0;
  HierarchyPlan plan;
  Grouping grouping;
  HierarchyLayout layout;
  NicSource nic_input;  ///< a property of this rank: others may have no window
  NicSource nic_output;
  device::CommView comm;           ///< control memory: the communicator's scratch
  CallFailure* failure = nullptr;  ///< names a world rank
};

/// Runs a call on the calling thread, which is the rank. Collective over all ranks of the
/// communicator; otherwise like run_all_reduce_on_host.
[[nodiscard]] bool run_hierarchy_on_host(HierarchyArguments arguments);

}  // namespace oriel::kernels
