// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oriel/device/comm.hpp"
#include "oriel/device/config.hpp"
#include "oriel/error.hpp"
#include "oriel/types.hpp"

#include "kernels/plan/arguments.hpp"
#include "kernels/plan/collective.hpp"

/// The collectives among ranks of several LSA teams, and all that are not all-reduces: one
/// algorithm (algorithms/hierarchy.hpp), its place in the scratch memory and its plan.
namespace oriel::kernels {

/// Bytes of the accumulator of one element of this type.
constexpr std::uint64_t accumulator_bytes(DataType type) {
  const bool is_small_float = type == DataType::f16 || type == DataType::bf16 ||
                              type == DataType::e4m3 || type == DataType::e5m2;
  return is_small_float ? sizeof(float) : size_of(type);
}

/// A division of all ranks into groups that exchange with each other: the LSA teams, or each rank
/// by itself. The tables lie where the algorithm runs.
struct Grouping {
  std::int32_t groups = 1;
  std::int32_t largest = 1;               ///< ranks of the largest group
  std::int32_t own = 0;                   ///< group of this rank
  std::int32_t own_index = 0;             ///< this rank's place in it
  const std::int32_t* sizes = nullptr;    ///< by group
  const std::int32_t* begins = nullptr;   ///< by group: where its members begin
  const std::int32_t* members = nullptr;  ///< world ranks, group by group

  [[nodiscard]] ORIEL_DEVICE_FN std::int32_t size(std::int32_t group) const { return sizes[group]; }
  [[nodiscard]] ORIEL_DEVICE_FN std::int32_t member(std::int32_t group, std::int32_t index) const {
    return members[begins[group] + index];
  }
};

/// A Grouping that owns its tables.
class GroupingTables {
 public:
  GroupingTables() = default;
  /// `groups` hold the world ranks of each; `rank` is in one of them.
  GroupingTables(const std::vector<std::vector<int>>& groups, int rank);
  GroupingTables(const GroupingTables&) = delete;
  GroupingTables& operator=(const GroupingTables&) = delete;
  GroupingTables(GroupingTables&&) = default;
  GroupingTables& operator=(GroupingTables&&) = default;

  /// Valid as long as this, also once this has been moved.
  Grouping view() const { return view_at(tables_.data()); }
  /// The same with the tables where somebody has copied tables() to.
  Grouping view_at(const std::int32_t* tables) const;
  const std::vector<std::int32_t>& tables() const { return tables_; }
  /// Whether a fold within each group and then over the groups in their order is the fold over all
  /// ranks (reduce.hpp): the groups are runs of one power of two of ranks, but for a shorter last.
  bool follows_the_tree() const;

 private:
  std::vector<std::int32_t> tables_;  // sizes, begins, members
  std::int32_t groups_ = 0, largest_ = 1, own_ = 0, own_index_ = 0;
};

/// What one rank has told another, in the other's scratch: each word is written by that rank only,
/// and holds `rounds << kSignatureBits | signature` of the call.
struct alignas(64) HierarchyLine {
  std::uint64_t inputs;    ///< inputs of so many rounds have come, within the group
  std::uint64_t partials;  ///< sums of other groups
  std::uint64_t results;   ///< results from other groups
  std::uint64_t copies;    ///< results from within the group
  std::uint64_t done;      ///< rounds that it has ended, so that their slots may be written again
  std::uint64_t spare[3];
};
static_assert(sizeof(HierarchyLine) == 64);

/// Where the CTAs of a kernel meet (algorithms/grid.cuh). Zero at first.
struct GridBarrier {
  std::uint32_t arrived;
  std::uint32_t failed;
};

/// Rounds for whose data there is room at once: see Hierarchy.
inline constexpr std::uint64_t kHierarchyDepth = 6;
/// Ranks of one reduction whose inputs are all sent as they are.
inline constexpr int kMostRawSources = 4096;
/// Units are multiples of so many elements, so that slots are aligned to cache lines.
inline constexpr std::uint64_t kUnitQuantum = 64;

/// Which groups exchange.
enum class GroupedBy : std::uint8_t { team = 0, rank = 1 };

/// Offsets in bytes from the start of the scratch memory; the same on all ranks of the
/// communicator. Groups of both kinds have parts of their own, since who hears of whose progress
/// differs.
struct HierarchyLayout {
  std::uint64_t counters = 0;     ///< two words a cache line apart: rounds that have ended, by kind
  std::uint64_t barrier = 0;      ///< a GridBarrier
  std::uint64_t lines[2] = {};    ///< by kind: an HierarchyLine of each world rank
  std::uint64_t regions[2] = {};  ///< by kind: kHierarchyDepth regions
  std::uint64_t region_bytes = 0;
  std::uint64_t total_bytes = 0;  ///< of all of it
};
/// Divides `bytes` from `offset` on. invalid_usage if they are too few for so many ranks.
Result<HierarchyLayout> make_hierarchy_layout(int ranks, std::uint64_t offset, std::uint64_t bytes);

/// How one call is cut up. A unit is what one rank finishes at a time.
struct HierarchyShape {
  std::int32_t groups = 1;
  std::int32_t lanes = 1;  ///< units of a group in a round, at most
  std::uint64_t unit = 0;  ///< elements
  std::uint64_t element_bytes = 1;
  std::uint64_t partial_bytes = 1;  ///< of an element of what groups send: an accumulator, or raw
  bool reduces = false;
  bool distributes = false;
};

/// Offsets of the slots inside a region, at a rank whose group has `size` ranks. A rank serves
/// every size-th lane; the slots of lane j are at place j / size.
struct RegionLayout {
  std::int32_t places = 1;     ///< lanes that one rank of the group serves, at most
  std::uint64_t inputs = 0;    ///< [group][place][index in own group]: inputs from the own group
  std::uint64_t partials = 0;  ///< [place][group]: for lanes of the own group
  std::uint64_t staged = 0;    ///< [group][place]: own sums on their way
  std::uint64_t finished = 0;  ///< [place]: own results on their way
  std::uint64_t results = 0;   ///< [group][place]: of lanes of other groups
  std::uint64_t copies = 0;    ///< [group][lane]: results from the own group
  std::uint64_t bytes = 0;
};

ORIEL_DEVICE_FN RegionLayout region_layout(const HierarchyShape& shape, std::int32_t size) {
  RegionLayout layout;
  layout.places = (shape.lanes + size - 1) / size;
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
    at += groups * static_cast<std::uint64_t>(shape.lanes) * plain;
  }
  layout.bytes = at;
  return layout;
}

/// How one call runs: from facts that are the same on all ranks.
struct HierarchyPlan {
  GroupedBy grouped_by = GroupedBy::team;
  bool one_hop = false;  ///< every rank sends all others their part of its input, or all of it
  bool raw = false;      ///< groups (of one rank) send inputs, not sums
  std::uint64_t rounds = 0;
  int ctas = 1;  ///< of a GPU
  HierarchyShape shape;
};

/// What a plan depends on.
struct HierarchyFacts {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::u8;
  std::uint64_t count = 0;  ///< elements: of all-reduce, the whole; else what each rank has or gets
  bool deterministic = false;
  std::uint64_t unit_bytes_most = 0;  ///< 0: what suits the backend
  Backend backend = Backend::host;
  int ctas = 0;      ///< of a GPU; 0: what suits the call
  int max_ctas = 1;  ///< that run at once
};

/// `teams` and `ranks` are the two groupings. invalid_usage if the scratch memory has no room for
/// the smallest units, or more than kMostRawSources ranks had to send their inputs as they are.
Result<HierarchyPlan> plan_hierarchy(const HierarchyFacts& facts, const HierarchyLayout& layout,
                                     const GroupingTables& teams, const GroupingTables& ranks);

/// Where the rank's NIC reads what the user's buffers hold.
struct NicSource {
  const device::NetworkWindow* window = nullptr;  ///< that holds all of the buffer; null: none does
  std::uint64_t offset = 0;                       ///< of the buffer in it
};

/// All that one call needs.
struct HierarchyArguments {
  Collective collective = Collective::all_reduce;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;           ///< null where a reduce's result is not kept
  std::uint64_t count = 0;               ///< as HierarchyFacts::count
  std::uint64_t scalar_bits = 0;         ///< this rank's scalar of a pre-multiplied sum: its bytes,
  const void* scalar_pointer = nullptr;  ///< or where a GPU reads it
  std::uint32_t signature = 0;           ///< below 2^kSignatureBits, equal if ranks agree
  /// GPUs of one team only, else 0: offsets in the scratch memory of where all-reduces exchange
  /// signatures, and of the count of calls that have (signatures.cuh).
  std::uint64_t signatures = 0;
  std::uint64_t signature_calls = 0;
  HierarchyPlan plan;
  Grouping grouping;
  HierarchyLayout layout;
  NicSource nic_input;  ///< for this rank alone: others may have none
  NicSource nic_output;
  device::CommView comm;           ///< its control memory is the communicator's scratch
  CallFailure* failure = nullptr;  ///< names a world rank
};

/// Runs it on the calling thread, which is the rank. As run_all_reduce_on_host, but collective over
/// all ranks of the communicator.
[[nodiscard]] bool run_hierarchy_on_host(HierarchyArguments arguments);

}  // namespace oriel::kernels
