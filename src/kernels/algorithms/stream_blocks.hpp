// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/algorithms/greeting.hpp"
#include "kernels/algorithms/stream_steps.hpp"

namespace oriel::kernels {

/// Streamed all-gather and all-to-all by plain loads and stores, for blocks too long for packets. A
/// rank's share is the block of each output that comes from it. It stores each chunk at all others:
/// straight into their output if both have theirs at one offset of the slots, which a greeting
/// tells, else into their rings, from which they copy. An all-gather reads each chunk once. Each
/// rank sends (ranks - 1) blocks.
///
/// If all have their outputs at one offset, a rank stores its whole part and raises one flag. Else
/// step i stores chunk i everywhere, and raises a flag at every other rank. Before it, a rank has
/// received all chunks up to i - depth / 2, and copied them out. A peer that has raised the flag of
/// that step had copied out all up to i - depth, so the slot of chunk i is free. That the rings are
/// free of the last call's chunks, and that outputs may be written, is known from the greetings:
/// their senders have begun this call. The kernels before theirs have ended.
///
/// Mover: as in a streamed broadcast.
template <class Group, class Mover, Collective kCollective>
class StreamBlocks {
 public:
  ORIEL_DEVICE_FN StreamBlocks(const AllReduceArguments& arguments, GridPlace place)
      : arguments_(arguments),
        mover_(arguments),
        steps_(arguments, place, Mover::element_bytes(arguments)) {}

  /// False, for all threads of the group, if a wait was given up: the output is not there.
  ORIEL_DEVICE_FN bool run() {
    if (steps_.chunks() == 0) return true;  // the same on all ranks
    device::grid_dependency_wait();
    device::grid_launch_dependents();
    steps_.begin();
    const Greetings<Group> greetings(arguments_, steps_.places(), steps_.greeting());
    greetings.send();
    std::uint64_t pulls = 0;  // nobody does
    if (!greetings.receive(pulls, direct_, mover_)) return false;
    return store_all();
  }

 private:
  ORIEL_DEVICE_FN bool direct(int rank) const { return ((direct_ >> rank) & 1) != 0; }
  /// Returns whether this rank stores into all outputs. It is the same on all ranks: the outputs
  /// then lie at one offset.
  ORIEL_DEVICE_FN bool is_straight() const {
    const std::uint64_t all = (std::uint64_t{2} << (arguments_.ranks - 1)) - 1;
    return (direct_ | std::uint64_t{1} << arguments_.rank) == all;
  }

  ORIEL_DEVICE_FN bool store_all() {
    const std::uint32_t chunks = steps_.chunks();
    const std::uint32_t lag = arguments_.stream.depth / 2;
    const bool in_steps = !is_straight();  // without rings there is nothing to wait for
    std::uint32_t retired = 0;
    for (std::uint32_t i = 0; i < chunks; ++i) {
      for (; in_steps && retired + lag <= i; ++retired) {
        if (!retire(retired)) return false;
      }
      store(i);
      if (in_steps) steps_.raise(i);
    }
    if (!in_steps) {
      steps_.raise(0);
      retired = chunks - 1;  // the one step stands for all of them
    }
    const std::uint32_t steps = in_steps ? chunks : 1;
    for (; retired < chunks; ++retired) {
      if (!retire(in_steps ? retired : 0)) return false;
    }
    steps_.finish(steps);  // retire() has synchronised
    return true;
  }

  /// Brings chunk `i` of this rank's blocks to all ranks, itself included.
  ORIEL_DEVICE_FN void store(std::uint32_t i) {
    const int me = arguments_.rank;
    const auto part = steps_.span(me, i);
    const auto block = [&](int rank) {
      return static_cast<std::uint64_t>(rank) * arguments_.share * steps_.element_bytes();
    };
    const std::uint64_t offset = part.first * steps_.element_bytes();
    const std::byte* const from = arguments_.input + (offset - block(me));
    std::byte* const own = arguments_.output + offset;
    const auto target = [&](int rank) -> std::byte* {
      if (rank == me) return own == from ? nullptr : own;
      if (direct(rank)) return steps_.output_at(rank, part);
      return steps_.ring(rank, Ring::output, i, me);
    };
    if constexpr (kCollective == Collective::all_gather) {
      mover_.pass_on(target, from, part.count);
    } else {
      mover_.distribute(
          target, [&](int rank) { return from + block(rank); }, part.count);
    }
  }

  /// Waits for chunk `i` from all ranks and copies what they could not store into the output
  /// themselves.
  ORIEL_DEVICE_FN bool retire(std::uint32_t i) {
    if (!steps_.wait_for_all(i)) return false;
    steps_.copy_out(i, direct_, mover_);
    return true;
  }

  const AllReduceArguments& arguments_;
  Mover mover_;
  StreamSteps<Group> steps_;
  std::uint64_t direct_ = 0;  // bit per rank: its output is written where it lies
};

}  // namespace oriel::kernels
