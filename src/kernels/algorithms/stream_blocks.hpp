// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/algorithms/stream_handshake.hpp"
#include "kernels/algorithms/stream_steps.hpp"

namespace oriel::kernels {

/// Streamed all-gather and all-to-all by plain loads and stores, for blocks too long for packets. A
/// rank's share is the block of each output that comes from this rank. Each rank sends (ranks - 1)
/// blocks. An all-gather reads each chunk once.
///
/// A rank stores each chunk at all other ranks. If a pair has both outputs at one offset of the
/// slots (known from the handshake), the rank stores straight into the other's output. Otherwise it
/// stores into the other's ring, from which that rank copies.
///
/// If all ranks have their outputs at one offset, a rank stores its whole part and raises one flag.
/// On GPUs some groups then copy only the rank's own block, and the others store at other ranks. A
/// multiprocessor that does both sends less (docs/notes/exchanges.md).
///
/// Otherwise step i stores chunk i everywhere and raises a flag at every other rank. Before step i,
/// a rank has received and copied out all chunks up to i - depth / 2. A peer that has raised the
/// flag of step i - depth / 2 had copied out all chunks up to i - depth. So the slot of chunk i is
/// free.
///
/// A handshake message proves that its sender has started this call and that the
/// sender's earlier kernels have ended. So the rings hold no chunk of the previous call, and
/// outputs may be written.
///
/// DataOps: see the streamed broadcast.
template <class Group, class DataOps, Collective kCollective>
class StreamBlocks {
 public:
  ORIEL_DEVICE_FN StreamBlocks(const AllReduceArguments& arguments, GridPlace place)
      : arguments_(arguments),
        place_(place),
        ops_(arguments),
        steps_(arguments, place, DataOps::element_bytes(arguments)) {}

  /// Returns false, for all threads of the group, if a wait was given up; the output is then
  /// incomplete.
  ORIEL_DEVICE_FN bool run() {
    if (steps_.chunks() == 0) return true;  // identical on all ranks
    device::grid_dependency_wait();
    device::grid_launch_dependents();
    steps_.begin();
    const StreamHandshake<Group> handshake(arguments_, steps_.places(), steps_.handshakes());
    handshake.send();
    std::uint64_t pulls = 0;  // stays 0: no rank reads inputs in place
    if (!handshake.receive(pulls, direct_, ops_)) return false;
    return is_straight() ? store_straight() : store_in_steps();
  }

 private:
  ORIEL_DEVICE_FN bool direct(int rank) const { return ((direct_ >> rank) & 1) != 0; }
  /// Returns whether this rank stores into all outputs. All ranks agree, because the outputs then
  /// lie at one offset.
  ORIEL_DEVICE_FN bool is_straight() const {
    const std::uint64_t all = (std::uint64_t{2} << (arguments_.ranks - 1)) - 1;
    return (direct_ | std::uint64_t{1} << arguments_.rank) == all;
  }

  ORIEL_DEVICE_FN bool store_straight() {
    const std::uint32_t senders = place_.ctas - arguments_.stream.own_groups;
    if (place_.cta >= senders) {
      copy_own(place_.cta - senders);
      steps_.finish(0);  // it has raised no flag
      return true;
    }
    if (senders < place_.ctas) {
      copies_apart_ = true;
      steps_.take_part(place_.cta, arguments_.stream.sent_part);
    }
    for (std::uint32_t i = 0; i < steps_.chunks(); ++i) store(i);
    steps_.raise(0);
    if (!steps_.wait_for_all(0)) return false;
    steps_.finish(1);
    return true;
  }

  ORIEL_DEVICE_FN bool store_in_steps() {
    const std::uint32_t chunks = steps_.chunks();
    const std::uint32_t lag = arguments_.stream.depth / 2;
    for (std::uint32_t i = 0; i < chunks + lag; ++i) {
      if (i >= lag && !retire(i - lag)) return false;
      if (i >= chunks) continue;
      store(i);
      steps_.raise(i);
    }
    steps_.finish(chunks);  // retire() has synchronised
    return true;
  }

  /// Copies part `index` of the rank's own block into the output.
  ORIEL_DEVICE_FN void copy_own(std::uint32_t index) {
    const std::uint64_t bytes = steps_.element_bytes();
    const std::uint64_t part = device::round_up(
        device::divide_up(arguments_.share, arguments_.stream.own_groups), 128 / bytes);
    const std::uint64_t begin = smaller(index * part, arguments_.share);
    const std::uint64_t own = static_cast<std::uint64_t>(arguments_.rank) * arguments_.share;
    const std::byte* const from =
        arguments_.input + (kCollective == Collective::all_gather ? begin : own + begin) * bytes;
    if (from == arguments_.output + (own + begin) * bytes) return;
    ops_.copy_out(own + begin, from, smaller(part, arguments_.share - begin));
  }

  /// Stores chunk `i` of this rank's blocks at all ranks, itself included if no other group does.
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
      if (rank == me) return own == from || copies_apart_ ? nullptr : own;
      if (direct(rank)) return steps_.output_at(rank, part);
      return steps_.ring(rank, Ring::output, i, me);
    };
    if constexpr (kCollective == Collective::all_gather) {
      ops_.pass_on(target, from, part.count);
    } else {
      ops_.distribute(
          target, [&](int rank) { return from + block(rank); }, part.count);
    }
  }

  /// Waits for chunk `i` from all ranks. Copies out of the ring the chunks that their senders could
  /// not store into the output.
  ORIEL_DEVICE_FN bool retire(std::uint32_t i) {
    if (!steps_.wait_for_all(i)) return false;
    steps_.copy_out(i, direct_, ops_);
    return true;
  }

  const AllReduceArguments& arguments_;
  GridPlace place_;
  DataOps ops_;
  StreamSteps<Group> steps_;
  std::uint64_t direct_ = 0;   // bit per rank: its output is written in place
  bool copies_apart_ = false;  // other groups copy the rank's own block
};

}  // namespace oriel::kernels
