// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "oriel/error.hpp"
#include "oriel/types.hpp"

#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/call_record.hpp"
#include "kernels/plan/collective.hpp"
#include "kernels/plan/layout.hpp"

namespace oriel::kernels {

/// Limits of a plan. A table with a value outside them is refused.
inline constexpr int kMaxTableRanks = 64;
inline constexpr int kMaxCtas = 1024;
inline constexpr std::uint32_t kMinChunkBytes = 128;  ///< chunk sizes are multiples of this
inline constexpr std::uint32_t kMaxChunkBytes = 1 << 20;
inline constexpr std::uint32_t kMinDepth = 2;
inline constexpr std::uint32_t kMaxDepth = 16;

/// Fewest CTAs of a GPU that send, if others only copy. Fewer do not fill the links of an H200.
inline constexpr int kLeastSendingCtas = 16;

/// Algorithm and launch parameters of one call.
struct Plan {
  Algorithm algorithm = Algorithm::stream;
  int ctas = 1;
  int threads = 1;
  std::uint32_t chunk_bytes = 0;  ///< stream only, like depth and lead
  std::uint32_t depth = 0;
  std::uint32_t lead = 0;
  int sub_ctas = 1;  ///< parts of a GPU's CTA, among which its threads are divided
  /// GPUs, long all-gathers and all-to-alls in streams: CTAs that copy only the rank's own block,
  /// if all outputs are written in place.
  int own_ctas = 0;
  /// GPUs, reduce-scatter: inputs take both rings of a CTA. Chunks may be up to twice as long.
  bool whole_rings = false;
  bool escaped_lines = false;  ///< GPUs, calls that copy in lines: EscapedLine, not FlaggedLine
};

/// One line of a table: the plan for messages of up to `max_bytes` among `ranks` ranks.
struct TableEntry {
  Backend backend = Backend::host;
  int ranks = 2;
  std::uint64_t max_bytes = 0;
  Plan plan;
};

/// Maps message sizes to plans: lists of measured entries, in the order of their sizes. The table
/// is compiled in, or read from the file that ORIEL_TABLE names. Immutable.
class ChoiceTable {
 public:
  /// Returns the table that is compiled in.
  static const ChoiceTable& built_in();
  /// Parses the text form. Each entry is a line "backend ranks max_bytes algorithm ctas threads
  /// chunk_bytes depth lead"; '#' starts a comment. A max_bytes of "max" means any size and ends
  /// the list of a backend and number of ranks. Later lines for the same backend and number of
  /// ranks belong to another list, for another number of CTAs. Errors (invalid_usage) name the
  /// line, the value and the allowed range.
  static Result<ChoiceTable> parse(std::string_view text);
  static Result<ChoiceTable> read(const std::string& path);

  /// Returns the first entry whose max_bytes is at least `bytes`, or null if the backend has no
  /// list.
  ///
  /// Selects the list as follows. A list for `ranks` ranks is used, or else one for the nearest
  /// number of ranks; of two equally near numbers the larger. Of several such lists, those whose
  /// CTAs do not exceed `most_ctas` are preferred, and of these the one with the most CTAs. If all
  /// lists exceed `most_ctas`, the one with the fewest CTAs is used.
  const TableEntry* find(Backend backend, int ranks, int most_ctas, std::uint64_t bytes) const;

  /// Returns a hash that is equal for equal tables. Ranks compare it when a communicator starts.
  std::uint64_t hash() const;
  std::string to_text() const;

 private:
  /// Entries of one backend and number of ranks; never empty.
  struct List {
    std::vector<TableEntry> entries;
    int ctas = 0;  ///< largest `ctas` of an entry

    Backend backend() const { return entries.front().backend; }
    int ranks() const { return entries.front().ranks; }
  };
  class Reader;

  explicit ChoiceTable(std::vector<List> lists) : lists_(std::move(lists)) {}
  static bool is_better(const List& list, const List& than, int ranks, int most_ctas);

  std::vector<List> lists_;
};

/// Plan values that a user forces for measurements; 0 and empty mean "use the table". Equal on all
/// ranks (checked when a communicator starts).
struct Overrides {
  std::string algorithm;
  int ctas = 0;
  std::uint32_t chunk_bytes = 0;
};

/// Returns the algorithm of this name. Returns invalid_usage if no such algorithm exists on this
/// backend.
Result<Algorithm> find_algorithm(const std::string& name, Backend backend);

/// Returns invalid_usage unless choose_plan has a plan for every message. Called once, when a
/// communicator starts.
Status check_choice(const ChoiceTable& table, Backend backend, const ScratchLayout& layout);

/// Chooses a plan that fits, from facts that are equal on all ranks: table, overrides, backend,
/// layout, type and count. If the message does not fit the slots of the table's algorithm, falls
/// back from one-shot to two-shot, and from all to stream. If chunks are too large for the rings,
/// makes chunks smaller. Returns invalid_usage if an override names no algorithm of this backend,
/// or if the rings have no room for the smallest chunks.
Result<Plan> choose_plan(const ChoiceTable& table, const Overrides& overrides, Backend backend,
                         const ScratchLayout& layout, DataType type, std::uint64_t count);

/// Chooses likewise for a reduce-scatter whose input has `count` elements. Never returns an
/// algorithm in which a rank sends all its input to every other rank.
Result<Plan> choose_scatter_plan(const ChoiceTable& table, const Overrides& overrides,
                                 Backend backend, const ScratchLayout& layout, DataType type,
                                 std::uint64_t count);

/// Chooses likewise for a broadcast of `count` elements, or for an all-gather or all-to-all whose
/// output has `count` elements. Always returns a stream.
Result<Plan> choose_copy_plan(Collective collective, const ChoiceTable& table,
                              const Overrides& overrides, Backend backend,
                              const ScratchLayout& layout, DataType type, std::uint64_t count);

/// Chooses an eager all-gather, all-to-all or reduce-scatter of CPU ranks (eager.hpp), whose blocks
/// have `bytes` bytes. Returns nullopt if an all-reduce of as many bytes would be neither one-shot
/// nor eager, or if the block does not fit into the slots.
std::optional<Plan> choose_eager_plan(const ChoiceTable& table, const Overrides& overrides,
                                      const ScratchLayout& layout, std::uint64_t bytes);

/// Chooses a one-shot all-gather or all-to-all (one_shot_blocks.hpp) of blocks of `bytes` bytes, or
/// a two-shot broadcast (two_shot_broadcast.hpp) of `bytes` bytes. Returns nullopt if the message
/// is empty or does not fit into the line slots.
std::optional<Plan> choose_lines_plan(Collective collective, const ChoiceTable& table,
                                      const Overrides& overrides, Backend backend,
                                      const ScratchLayout& layout, std::uint64_t bytes);
/// Returns the lines of a share in a two-shot broadcast of `bytes` bytes among `ranks` ranks.
std::uint64_t share_of_broadcast(const Plan& plan, int ranks, std::uint64_t bytes);

/// Ranks that own shares of a call: `count` ranks from `first` on, to the right.
struct Owners {
  int first = 0;
  int count = 1;
};
/// Returns the owners of shares of a call of `bytes` bytes. Usually all ranks own shares. In a
/// broadcast the root owns none, nor in a stream of a long reduce among more than two GPUs. There
/// the root already sends, or receives, the whole message.
Owners owners_of(const Plan& plan, Backend backend, Collective collective, int root, int ranks,
                 std::uint64_t bytes);

/// Returns whether the owners of a streamed call read all inputs in place, if every rank's buffers
/// are registered and aligned to 16 bytes (stream.hpp). Never for CPUs, which decide it for each
/// pair of ranks, nor if elements are scaled or reduced one payload at a time. `on_one_gpu`: all
/// ranks are one team and share a GPU.
bool reads_inputs(Backend backend, const ScratchLayout& layout, const CollectiveCall& call,
                  bool on_one_gpu);

/// Division of a call's elements. `share` is the work of each owner, in elements, or in lines for
/// two_shot. `part` is the work of each CTA or sub-CTA within a share (stream only).
struct Split {
  std::uint64_t share = 0;
  std::uint64_t part = 0;
};
Split split_work(const Plan& plan, Backend backend, int owners, DataType type, std::uint64_t count);

/// Divides a reduce-scatter, all-gather or all-to-all of blocks of `block` elements: a block is a
/// share, in elements, or in lines for two_shot.
Split split_blocks(const Plan& plan, Backend backend, DataType type, std::uint64_t block);

/// Returns the part of a block, in elements, of each CTA or sub-CTA that sends, if `plan.own_ctas`
/// do not.
std::uint64_t part_of_sender(const Plan& plan, DataType type, std::uint64_t block);

/// Returns the bytes of a stream's chunks. On CPUs these are the plan's; on GPUs at most the
/// plan's, so that the chunks of a part are about equally long.
std::uint32_t chunk_of(const Plan& plan, Backend backend, const Split& split, DataType type);

/// Returns whether the numbers of `plan` are within their limits, and the message fits the line
/// slots or the chunks fit the rings. `trips_of_two_shot`: 2, or 1 for a reduce-scatter, whose
/// lines need one slot each.
bool fits(const Plan& plan, Backend backend, const ScratchLayout& layout, DataType type,
          std::uint64_t count, int trips_of_two_shot = 2);

}  // namespace oriel::kernels
