// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/hierarchy.hpp"
#include "kernels/host/reduce_loops.hpp"

namespace oriel::kernels {

/// Moves and folds elements for Hierarchy with the vectorised loops of one CPU thread. Any number
/// of sources: more than the loops take are folded by runs of 64, which are subtrees, into sums.
class HostHierarchyMover {
 public:
  explicit HostHierarchyMover(const HierarchyArguments& arguments);

  /// Before all else; what a GPU would read from device memory.
  void begin() const {}
  /// Elements of this rank's input, scaled if the operation scales.
  void send(std::byte* to, std::uint64_t first, std::uint64_t count) const;
  void copy(std::byte* to, const std::byte* from, std::uint64_t count) const;

  /// The fold of inputs, left as accumulators. `source(i)` is where input i lies; that of `own` is
  /// this rank's, not yet scaled.
  template <class Source>
  void fold_inputs(std::byte* sums, int sources, const Source& source, int own,
                   std::uint64_t count) const {
    Sources pointers;
    for (int i = 0; i < sources; ++i) pointers[static_cast<std::size_t>(i)] = source(i);
    add_inputs(sums, pointers.data(), sources, own, count);
  }

  /// The fold of inputs, finished. It may be stored where this rank's own input lies.
  template <class Source>
  void fold_all(std::byte* to, int sources, const Source& source, int own,
                std::uint64_t count) const {
    if (sources <= host::kMaxLoopArrays) {
      Sources pointers;
      for (int i = 0; i < sources; ++i) pointers[static_cast<std::size_t>(i)] = source(i);
      finish_inputs(to, pointers.data(), sources, own, count);
      return;
    }
    fold_by_runs(to, sources, element_bytes_, count,
                 [&](std::byte* sums, int first, int run, std::uint64_t from, std::uint64_t part) {
                   fold_inputs(
                       sums, run, [&](int i) { return source(first + i) + from * element_bytes_; },
                       own - first, part);
                 });
  }

  /// The fold of sums, finished.
  template <class Source>
  void fold_sums(std::byte* to, int sources, const Source& source, std::uint64_t count) const {
    if (sources <= host::kMaxLoopArrays) {
      Sources pointers;
      for (int i = 0; i < sources; ++i) pointers[static_cast<std::size_t>(i)] = source(i);
      finish_sums(to, pointers.data(), sources, count);
      return;
    }
    fold_by_runs(to, sources, element_bytes_, count,
                 [&](std::byte* sums, int first, int run, std::uint64_t from, std::uint64_t part) {
                   Sources pointers;
                   for (int i = 0; i < run; ++i) {
                     pointers[static_cast<std::size_t>(i)] = source(first + i) + from * sum_bytes_;
                   }
                   add_sums(sums, pointers.data(), run, part);
                 });
  }

 private:
  using Sources = std::array<const std::byte*, host::kMaxLoopArrays>;
  static constexpr int kRun = host::kMaxLoopArrays;
  static constexpr int kMostRuns = kMostRawSources / kRun;
  static_assert(kMostRuns <= host::kMaxLoopArrays);
  static constexpr std::uint64_t kPiece = 64;  // elements that are folded at a time

  template <class FoldRun>
  void fold_by_runs(std::byte* to, int sources, std::uint64_t bytes, std::uint64_t count,
                    const FoldRun& fold_run) const {
    alignas(64) std::byte sums[kMostRuns][kPiece * sizeof(double)];
    Sources runs;
    for (std::uint64_t from = 0; from < count; from += kPiece) {
      const std::uint64_t part = std::min(kPiece, count - from);
      int folded = 0;
      for (int first = 0; first < sources; first += kRun, ++folded) {
        auto* const sum = sums[folded];
        fold_run(sum, first, std::min(kRun, sources - first), from, part);
        runs[static_cast<std::size_t>(folded)] = sum;
      }
      finish_sums(to + from * bytes, runs.data(), folded, part);
    }
  }

  void add_inputs(std::byte* sums, const std::byte* const* sources, int n, int own,
                  std::uint64_t count) const;
  void finish_inputs(std::byte* to, const std::byte* const* sources, int n, int own,
                     std::uint64_t count) const;
  void add_sums(std::byte* sums, const std::byte* const* sources, int n, std::uint64_t count) const;
  void finish_sums(std::byte* to, const std::byte* const* sources, int n,
                   std::uint64_t count) const;
  void run_loop(DataType type, ReduceOp op, std::byte* to, const std::byte* const* sources, int n,
                std::uint64_t count, const std::byte* scalars, bool streaming) const;

  const HierarchyArguments& arguments_;
  host::Isa isa_;
  std::uint64_t element_bytes_;
  std::uint64_t sum_bytes_;
  DataType sum_type_;
  bool is_narrow_;  // accumulators are wider than elements
};

}  // namespace oriel::kernels
