// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "oriel/error.hpp"
#include "oriel/types.hpp"

#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/collective.hpp"
#include "kernels/plan/layout.hpp"

namespace oriel::kernels {

/// What a plan may ask for. A table that asks for anything else is refused.
inline constexpr int kMaxTableRanks = 64;
inline constexpr int kMaxCtas = 1024;
inline constexpr std::uint32_t kMinChunkBytes = 128;  ///< and chunks are multiples of it
inline constexpr std::uint32_t kMaxChunkBytes = 1 << 20;
inline constexpr std::uint32_t kMinDepth = 2;
inline constexpr std::uint32_t kMaxDepth = 16;

/// How one call runs.
struct Plan {
  Algorithm algorithm = Algorithm::stream;
  int ctas = 1;
  int threads = 1;
  std::uint32_t chunk_bytes = 0;  ///< stream only, as the next two
  std::uint32_t depth = 0;
  std::uint32_t lead = 0;
  int sub_ctas = 1;  ///< of a GPU's CTA, which divide its threads
};

/// One line of a table: the plan for messages of up to `max_bytes` among `ranks` ranks.
struct TableEntry {
  Backend backend = Backend::host;
  int ranks = 2;
  std::uint64_t max_bytes = 0;
  Plan plan;
};

/// Which plan to use for which size: lists of measured entries, in the order of their sizes. Built
/// in for the machines that we have, or read from the file that ORIEL_TABLE names. Immutable.
class ChoiceTable {
 public:
  /// The measurements that are compiled in.
  static const ChoiceTable& built_in();
  /// Parses the text form: a line per entry, "backend ranks max_bytes algorithm ctas threads
  /// chunk_bytes depth lead"; '#' starts a comment; "max" as max_bytes is "any size", and the list
  /// of each backend and number of ranks ends with such a line. Lines after it are of another list,
  /// for another number of CTAs. Errors (invalid_usage) name the line, the value and what is
  /// allowed.
  static Result<ChoiceTable> parse(std::string_view text);
  static Result<ChoiceTable> read(const std::string& path);

  /// The first entry that is large enough, of a list for this number of ranks, or else for the
  /// nearest number that has one; of two equally near ones the larger. Of several lists the one
  /// with the most CTAs, of those that do with `most_ctas`, or else the one with the fewest. Null
  /// only if the backend has none.
  const TableEntry* find(Backend backend, int ranks, int most_ctas, std::uint64_t bytes) const;

  /// Equal for equal tables: ranks agree on it when a communicator starts.
  std::uint64_t hash() const;
  std::string to_text() const;

 private:
  /// Never empty; all entries are for one backend and number of ranks.
  struct List {
    std::vector<TableEntry> entries;
    int ctas = 0;  ///< most of an entry

    Backend backend() const { return entries.front().backend; }
    int ranks() const { return entries.front().ranks; }
  };
  class Reader;

  explicit ChoiceTable(std::vector<List> lists) : lists_(std::move(lists)) {}
  static bool is_better(const List& list, const List& than, int ranks, int most_ctas);

  std::vector<List> lists_;
};

/// What a user forces for measurements; 0 and empty mean "as the table says". Equal on all ranks
/// (agreed when a communicator starts).
struct Overrides {
  std::string algorithm;
  int ctas = 0;
  std::uint32_t chunk_bytes = 0;
};

/// The algorithm of this name; invalid_usage if there is none, or not on this backend.
Result<Algorithm> find_algorithm(const std::string& name, Backend backend);

/// Whether choose_plan will have a plan for every message; invalid_usage if not. To be asked once,
/// when a communicator starts.
Status check_choice(const ChoiceTable& table, Backend backend, const ScratchLayout& layout);

/// Chooses from facts that are equal on all ranks: table, backend, ranks, type, count, layout. If
/// the table's algorithm has no room for the message in the scratch layout, the next one that has;
/// chunks too large for their rings are made smaller. What it returns fits.
/// invalid_usage if an override cannot be met (there is no such algorithm, or not on this backend)
/// or if there is no room at all.
Result<Plan> choose_plan(const ChoiceTable& table, const Overrides& overrides, Backend backend,
                         const ScratchLayout& layout, DataType type, std::uint64_t count);

/// Chooses likewise for a reduce-scatter, whose input has `count` elements: never an algorithm in
/// which a rank sends all its input to all.
Result<Plan> choose_scatter_plan(const ChoiceTable& table, const Overrides& overrides,
                                 Backend backend, const ScratchLayout& layout, DataType type,
                                 std::uint64_t count);

/// Chooses likewise for a broadcast, or an all-gather or all-to-all whose output has `count`
/// elements: a stream.
Result<Plan> choose_copy_plan(Collective collective, const ChoiceTable& table,
                              const Overrides& overrides, Backend backend,
                              const ScratchLayout& layout, DataType type, std::uint64_t count);

/// Which ranks own shares of a call: `count` of them from `first` on, to the right.
struct Owners {
  int first = 0;
  int count = 1;
};
/// Returns the owners of a call of `bytes` bytes with `plan`: all ranks, but in a broadcast, and in
/// a stream of a long reduce among more than two GPUs. There the root leaves the others to own
/// shares, as it sends all, or receives all, of the message itself.
Owners owners_of(const Plan& plan, Backend backend, Collective collective, int root, int ranks,
                 std::uint64_t bytes);

/// How a call's elements are divided: `share` is what each of `owners` ranks owns (in elements; in
/// lines for two_shot), `part` what each CTA, or sub-CTA, has of a share (stream only).
struct Split {
  std::uint64_t share = 0;
  std::uint64_t part = 0;
};
Split split_work(const Plan& plan, Backend backend, int owners, DataType type, std::uint64_t count);

/// Does the same for a reduce-scatter, all-gather or all-to-all of blocks of `block` elements: a
/// block is a share.
Split split_blocks(const Plan& plan, Backend backend, DataType type, std::uint64_t block);

/// Bytes of a stream's chunks: on CPUs those of `plan`, on GPUs at most so many, and all about
/// equally long.
std::uint32_t chunk_of(const Plan& plan, Backend backend, const Split& split, DataType type);

/// Whether `plan` fits: its numbers into their limits, and the message into the line slots or the
/// chunks into the rings.
bool fits(const Plan& plan, Backend backend, const ScratchLayout& layout, DataType type,
          std::uint64_t count);

}  // namespace oriel::kernels
