// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/hierarchy_ops_host.hpp"

#include <algorithm>
#include <cstring>

#include "oriel/device/reduce.hpp"
#include "oriel/device/scalar.hpp"

#include "kernels/host/data_ops_host.hpp"

namespace oriel::kernels {
namespace {

/// Calls `action` with a value of the 16-bit or 8-bit float type.
template <class Action>
void with_small_float(DataType type, const Action& action) {
  switch (type) {
    case DataType::f16:
      return action(device::f16{});
    case DataType::bf16:
      return action(device::bf16{});
    case DataType::e4m3:
      return action(device::e4m3{});
    case DataType::e5m2:
      return action(device::e5m2{});
    default:
      return;
  }
}

/// Returns the operation that folds inputs which are already scaled.
constexpr ReduceOp scaled_already(ReduceOp op) {
  return op == ReduceOp::premul_sum ? ReduceOp::sum : op;
}
/// Returns the operation that combines accumulators without finishing them.
constexpr ReduceOp unfinished(ReduceOp op) {
  return op == ReduceOp::avg ? ReduceOp::sum : op;
}

}  // namespace

HostHierarchyOps::HostHierarchyOps(const HierarchyArguments& arguments)
    : arguments_(arguments),
      isa_(isa_in_use()),
      element_bytes_(size_of(arguments.type)),
      sum_bytes_(accumulator_bytes(arguments.type)),
      sum_type_(sum_bytes_ == element_bytes_ ? arguments.type : DataType::f32),
      is_narrow_(sum_bytes_ != element_bytes_) {}

void HostHierarchyOps::run_loop(DataType type, ReduceOp op, std::byte* to,
                                const std::byte* const* sources, int n, std::uint64_t count,
                                const std::byte* scalars, bool streaming) const {
  host::ReduceLoopArgs loop;
  loop.dsts = &to;
  loop.n_dsts = 1;
  loop.srcs = sources;
  loop.n_srcs = n;
  loop.count = count;
  loop.n_ranks_for_avg = arguments_.comm.world_size;
  loop.scalars = scalars;
  loop.streaming = streaming;
  host::find_reduce_loop(type, op, isa_)(loop);
}

void HostHierarchyOps::send(std::byte* to, std::uint64_t first, std::uint64_t count) const {
  const std::byte* const source = arguments_.input + first * element_bytes_;
  if (arguments_.op != ReduceOp::premul_sum || !reduces(arguments_.collective)) {
    return copy(to, source, count);
  }
  run_loop(arguments_.type, ReduceOp::premul_sum, to, &source, 1, count,
           reinterpret_cast<const std::byte*>(&arguments_.scalar_bits), false);
}

void HostHierarchyOps::copy(std::byte* to, const std::byte* from, std::uint64_t count) const {
  host::find_copy_loop(isa_)(to, from, count * element_bytes_, false);
}

HostHierarchyOps::Sources HostHierarchyOps::pointers(const FoldSources& sources, int first, int run,
                                                     std::uint64_t offset) {
  Sources all;
  for (int i = 0; i < run; ++i) all[static_cast<std::size_t>(i)] = sources[first + i] + offset;
  return all;
}

template <class FoldRun>
void HostHierarchyOps::fold_by_runs(std::byte* to, const FoldSources& sources,
                                    std::uint64_t source_bytes, std::uint64_t count,
                                    const FoldRun& fold_run) const {
  alignas(64) std::byte sums[kMostRuns][kPiece * sizeof(double)];
  Sources runs;
  for (std::uint64_t from = 0; from < count; from += kPiece) {
    const std::uint64_t part = std::min(kPiece, count - from);
    int folded = 0;
    for (int first = 0; first < sources.count; first += kRun, ++folded) {
      auto* const sum = sums[folded];
      const int run = std::min(kRun, sources.count - first);
      fold_run(sum, pointers(sources, first, run, from * source_bytes), first, run, part);
      runs[static_cast<std::size_t>(folded)] = sum;
    }
    finish_sums(to + from * element_bytes_, runs.data(), folded, part);
  }
}

void HostHierarchyOps::fold_inputs(std::byte* sums, const FoldSources& sources,
                                   std::uint64_t count) const {
  add_inputs(sums, pointers(sources, 0, sources.count, 0).data(), sources.count, sources.own,
             count);
}

void HostHierarchyOps::fold_all(std::byte* to, const FoldSources& sources,
                                std::uint64_t count) const {
  if (sources.count <= kRun) {
    return finish_inputs(to, pointers(sources, 0, sources.count, 0).data(), sources.count,
                         sources.own, count);
  }
  fold_by_runs(to, sources, element_bytes_, count,
               [&](std::byte* sums, const Sources& run, int first, int size, std::uint64_t part) {
                 add_inputs(sums, run.data(), size, sources.own - first, part);
               });
}

void HostHierarchyOps::fold_sums(std::byte* to, const FoldSources& sources,
                                 std::uint64_t count) const {
  if (sources.count <= kRun) {
    return finish_sums(to, pointers(sources, 0, sources.count, 0).data(), sources.count, count);
  }
  fold_by_runs(to, sources, sum_bytes_, count,
               [&](std::byte* sums, const Sources& run, int /*first*/, int size,
                   std::uint64_t part) { add_sums(sums, run.data(), size, part); });
}

void HostHierarchyOps::finish_inputs(std::byte* to, const std::byte* const* sources, int n, int own,
                                     std::uint64_t count) const {
  std::array<std::uint64_t, host::kMaxLoopArrays> scalars;
  const bool scales = arguments_.op == ReduceOp::premul_sum;
  if (scales) {
    scalars.fill(one_of(arguments_.type));
    if (own >= 0 && own < n) scalars[static_cast<std::size_t>(own)] = arguments_.scalar_bits;
  }
  run_loop(arguments_.type, arguments_.op, to, sources, n, count,
           reinterpret_cast<const std::byte*>(scalars.data()), false);
}

void HostHierarchyOps::add_inputs(std::byte* sums, const std::byte* const* sources, int n, int own,
                                  std::uint64_t count) const {
  const bool scales = arguments_.op == ReduceOp::premul_sum;
  if (!is_narrow_) {
    std::array<std::uint64_t, host::kMaxLoopArrays> scalars;
    if (scales) {
      scalars.fill(one_of(arguments_.type));
      if (own >= 0 && own < n) scalars[static_cast<std::size_t>(own)] = arguments_.scalar_bits;
    }
    return run_loop(arguments_.type, unfinished(arguments_.op), sums, sources, n, count,
                    reinterpret_cast<const std::byte*>(scalars.data()), false);
  }
  with_small_float(arguments_.type, [&](auto zero) {
    using T = decltype(zero);
    T scalar;
    std::memcpy(&scalar, &arguments_.scalar_bits, sizeof scalar);
    alignas(64) float wide[host::kMaxLoopArrays][kPiece];
    Sources pieces;
    for (std::uint64_t from = 0; from < count; from += kPiece) {
      const std::uint64_t part = std::min(kPiece, count - from);
      for (int i = 0; i < n; ++i) {
        const std::byte* const source = sources[i] + from * sizeof(T);
        for (std::uint64_t k = 0; k < part; ++k) {
          T element;
          std::memcpy(&element, source + k * sizeof(T), sizeof element);
          if (scales && i == own) {
            element = device::Reduction<T, ReduceOp::premul_sum>::scale(element, scalar);
          }
          wide[i][k] = static_cast<float>(element);
        }
        pieces[static_cast<std::size_t>(i)] = reinterpret_cast<const std::byte*>(wide[i]);
      }
      run_loop(sum_type_, scaled_already(unfinished(arguments_.op)), sums + from * sizeof(float),
               pieces.data(), n, part, nullptr, false);
    }
  });
}

void HostHierarchyOps::add_sums(std::byte* sums, const std::byte* const* sources, int n,
                                std::uint64_t count) const {
  run_loop(sum_type_, scaled_already(unfinished(arguments_.op)), sums, sources, n, count, nullptr,
           false);
}

void HostHierarchyOps::finish_sums(std::byte* to, const std::byte* const* sources, int n,
                                   std::uint64_t count) const {
  if (!is_narrow_) {
    return run_loop(sum_type_, scaled_already(arguments_.op), to, sources, n, count, nullptr,
                    false);
  }
  with_small_float(arguments_.type, [&](auto zero) {
    using T = decltype(zero);
    const bool divides = arguments_.op == ReduceOp::avg;
    const device::Reduction<T, ReduceOp::avg> average{arguments_.comm.world_size};
    const device::Reduction<T, ReduceOp::sum> plain{};
    alignas(64) float folded[kPiece];
    Sources pieces;
    for (std::uint64_t from = 0; from < count; from += kPiece) {
      const std::uint64_t part = std::min(kPiece, count - from);
      for (int i = 0; i < n; ++i) {
        pieces[static_cast<std::size_t>(i)] = sources[i] + from * sizeof(float);
      }
      add_sums(reinterpret_cast<std::byte*>(folded), pieces.data(), n, part);
      for (std::uint64_t k = 0; k < part; ++k) {
        const T element = divides ? average.finish(folded[k]) : plain.finish(folded[k]);
        std::memcpy(to + (from + k) * sizeof(T), &element, sizeof element);
      }
    }
  });
}

}  // namespace oriel::kernels
