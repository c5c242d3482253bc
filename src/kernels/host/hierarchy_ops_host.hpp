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

/// Moves and folds elements for Hierarchy with the vectorised loops of one CPU thread. More than 64
/// sources are folded in runs of 64, which are subtrees, into partial sums.
class HostHierarchyOps {
 public:
  explicit HostHierarchyOps(const HierarchyArguments& arguments);

  /// Called first. Does nothing: a GPU would read the scalar from device memory here.
  void begin() const {}
  /// Copies elements of this rank's input to `to`, scaled if the operation scales.
  void send(std::byte* to, std::uint64_t first, std::uint64_t count) const;
  void copy(std::byte* to, const std::byte* from, std::uint64_t count) const;

  /// Folds inputs into accumulators. This rank's own input is not yet scaled.
  void fold_inputs(std::byte* sums, const FoldSources& sources, std::uint64_t count) const;
  /// Folds inputs and finishes the result. `to` may be this rank's own input.
  void fold_all(std::byte* to, const FoldSources& sources, std::uint64_t count) const;
  /// Folds partial sums and finishes the result.
  void fold_sums(std::byte* to, const FoldSources& sources, std::uint64_t count) const;

 private:
  using Sources = std::array<const std::byte*, host::kMaxLoopArrays>;
  static constexpr int kRun = host::kMaxLoopArrays;
  static constexpr int kMostRuns = kMostRawSources / kRun;
  static_assert(kMostRuns <= host::kMaxLoopArrays);
  static constexpr std::uint64_t kPiece = 64;  // elements that are folded at a time

  /// Returns the addresses of `run` sources from `first` on, each advanced by `offset` bytes.
  static Sources pointers(const FoldSources& sources, int first, int run, std::uint64_t offset);
  /// Folds more than kRun sources piece by piece. `fold_run(sums, pointers, first, run, part)`
  /// folds one run of a piece.
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
