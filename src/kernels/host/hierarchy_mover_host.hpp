// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/algorithms/fold_sources.hpp"
#include "kernels/loops/reduce_loops.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

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

  /// The fold of inputs, left as accumulators. The own one is not yet scaled.
  void fold_inputs(std::byte* sums, const FoldSources& sources, std::uint64_t count) const;
  /// The fold of inputs, finished. It may be stored where this rank's own input lies.
  void fold_all(std::byte* to, const FoldSources& sources, std::uint64_t count) const;
  /// The fold of sums, finished.
  void fold_sums(std::byte* to, const FoldSources& sources, std::uint64_t count) const;

 private:
  using Sources = std::array<const std::byte*, host::kMaxLoopArrays>;
  static constexpr int kRun = host::kMaxLoopArrays;
  static constexpr int kMostRuns = kMostRawSources / kRun;
  static_assert(kMostRuns <= host::kMaxLoopArrays);
  static constexpr std::uint64_t kPiece = 64;  // elements that are folded at a time

  /// Where `run` sources from `first` on have their bytes from `offset` on.
  static Sources pointers(const FoldSources& sources, int first, int run, std::uint64_t offset);
  /// `fold_run(sums, pointers, first, run, part)` folds one run of a piece.
  template <class FoldRun>
  void fold_by_runs(std::byte* to, const FoldSources& sources, std::uint64_t source_bytes,
                    std::uint64_t count, const FoldRun& fold_run) const;

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
