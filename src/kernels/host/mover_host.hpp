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

/// Moves and reduces elements with the vectorised loops of one CPU thread.
class HostMover {
 public:
  static constexpr bool kPulls = true;
  static constexpr bool kBroadcasts = false;
  static std::uint64_t element_bytes(const AllReduceArguments& arguments) {
    return size_of(arguments.type);
  }

  explicit HostMover(const AllReduceArguments& arguments);

  /// As the functions of GroupReduceMover of the same names. The scalar has come with the
  /// arguments.
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

  /// Reduces `count` elements of all ranks, by rank at `sources`, to `target`.
  void reduce_into(std::byte* target, const std::byte* const* sources, std::uint64_t count) const {
    reduce_arrays(sources, &target, 1, count);
  }

  /// A rank whose input this one reads in place has not scaled it.
  void set_scalar(int rank, std::uint64_t bits) { scalars_[static_cast<std::size_t>(rank)] = bits; }

 private:
  void reduce_arrays(const std::byte* const* sources, std::byte* const* targets, int n_targets,
                     std::uint64_t count) const;

  const AllReduceArguments& arguments_;
  host::Isa isa_;
  std::uint64_t element_bytes_;
  bool streaming_;
  std::array<std::uint64_t, host::kMaxLoopArrays> scalars_;  // of pre-multiplied sums only
};

/// Moves the elements of a collective that copies, as HostMover.
class HostCopyMover {
 public:
  static constexpr bool kPulls = false;
  static constexpr bool kBroadcasts = true;
  static std::uint64_t element_bytes(const AllReduceArguments& arguments) {
    return size_of(arguments.type);
  }

  explicit HostCopyMover(const AllReduceArguments& arguments)
      : arguments_(arguments), element_bytes_(element_bytes(arguments)) {}

  void begin() const {}
  /// Stores elements of the root's input where a peer wants them, and into the root's own output.
  void send(std::byte* place, std::uint64_t first, std::uint64_t count) const;
  void copy_out(std::uint64_t first, const std::byte* slot, std::uint64_t count) const;
  /// Stores `count` elements at `from` at the target of each rank that has one.
  template <class Target>
  void pass_on(const Target& target, const std::byte* from, std::uint64_t count) const {
    for (int rank = 0; rank < arguments_.ranks; ++rank) copy(target(rank), from, count);
  }
  /// Stores `count` elements of each rank's source at its target, if it has one.
  template <class Target, class Source>
  void distribute(const Target& target, const Source& source, std::uint64_t count) const {
    for (int rank = 0; rank < arguments_.ranks; ++rank) copy(target(rank), source(rank), count);
  }

 private:
  /// Does nothing if `to` is null.
  void copy(std::byte* to, const std::byte* from, std::uint64_t count) const;

  const AllReduceArguments& arguments_;
  std::uint64_t element_bytes_;
};

/// The bytes of a one of this type: the scalar of what its sender has scaled already.
std::uint64_t one_of(DataType type);

/// The best instruction set that this processor has.
host::Isa isa_in_use();

}  // namespace oriel::kernels
