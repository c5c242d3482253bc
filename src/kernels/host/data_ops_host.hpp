// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "kernels/loops/reduce_loops.hpp"
#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

/// DataOps of StreamAllReduce that moves and reduces elements with the vectorised loops of one CPU
/// thread.
class HostDataOps {
 public:
  static constexpr bool kPulls = true;
  static constexpr bool kReadsAll = false;
  static constexpr bool kBroadcasts = false;
  static std::uint64_t element_bytes(const AllReduceArguments& arguments) {
    return size_of(arguments.type);
  }

  explicit HostDataOps(const AllReduceArguments& arguments);

  /// These functions are like those of GroupReduceOps. begin() has nothing to read, because the
  /// scalar is in the arguments.
  void begin() const {}
  void send(std::byte* slot, std::uint64_t first, std::uint64_t count) const;
  void copy_out(std::uint64_t first, const std::byte* slot, std::uint64_t count) const;

  template <class Source, class Target>
  void reduce(const Source& source, const Target& target, int targets_used,
              std::uint64_t count) const {
    const auto ranks = static_cast<std::size_t>(arguments_.ranks);
    std::array<const std::byte*, host::kMaxLoopArrays> sources{};
    std::array<std::byte*, host::kMaxLoopArrays> targets{};
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      sources[rank] = source(static_cast<int>(rank));
      targets[rank] = target(static_cast<int>(rank));
    }
    if (targets_used == 1) targets[0] = target(arguments_.rank);
    reduce_arrays(sources.data(), targets.data(), targets_used, count);
  }

  /// Reduces `count` elements of all ranks to `target`. `sources` has one address per rank.
  void reduce_into(std::byte* target, const std::byte* const* sources, std::uint64_t count) const {
    reduce_arrays(sources, &target, 1, count);
  }

  /// Sets the scalar of a rank whose input this rank reads in place. That rank has not scaled its
  /// input.
  void set_scalar(int rank, std::uint64_t bits) { scalars_[static_cast<std::size_t>(rank)] = bits; }

 private:
  void reduce_arrays(const std::byte* const* sources, std::byte* const* targets, int n_targets,
                     std::uint64_t count) const;

  const AllReduceArguments& arguments_;
  host::Isa isa_;
  std::uint64_t element_bytes_;
  bool streaming_;
  std::array<std::uint64_t, host::kMaxLoopArrays> scalars_;  // for pre-multiplied sums
};

/// DataOps of collectives that copy, like HostDataOps.
class HostCopyOps {
 public:
  static constexpr bool kPulls = false;
  static constexpr bool kReadsAll = false;
  static constexpr bool kBroadcasts = true;
  static std::uint64_t element_bytes(const AllReduceArguments& arguments) {
    return size_of(arguments.type);
  }

  explicit HostCopyOps(const AllReduceArguments& arguments)
      : arguments_(arguments), element_bytes_(element_bytes(arguments)) {}

  void begin() const {}
  /// Stores elements of the root's input at `place` in a peer's memory, and in the root's own
  /// output.
  void send(std::byte* place, std::uint64_t first, std::uint64_t count) const;
  void copy_out(std::uint64_t first, const std::byte* slot, std::uint64_t count) const;
  /// Stores `count` elements at `from` in the target of each rank that has one.
  template <class Target>
  void pass_on(const Target& target, const std::byte* from, std::uint64_t count) const {
    for (int rank = 0; rank < arguments_.ranks; ++rank) copy(target(rank), from, count);
  }
  /// Stores `count` elements of each rank's source in the rank's target, if it has one.
  template <class Target, class Source>
  void distribute(const Target& target, const Source& source, std::uint64_t count) const {
    for (int rank = 0; rank < arguments_.ranks; ++rank) copy(target(rank), source(rank), count);
  }

 private:
  /// Copies `count` elements. Does nothing if `to` is null or equals `from`.
  void copy(std::byte* to, const std::byte* from, std::uint64_t count) const;

  const AllReduceArguments& arguments_;
  std::uint64_t element_bytes_;
};

/// Returns the bytes of a 1 of this type: the scalar for inputs that their sender has already
/// scaled. Multiplying by 1 is exact.
std::uint64_t one_of(DataType type);

/// Returns the best instruction set of this processor that has loops.
host::Isa isa_in_use();

}  // namespace oriel::kernels
