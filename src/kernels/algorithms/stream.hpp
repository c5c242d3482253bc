// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/algorithms/stream_handshake.hpp"
#include "kernels/algorithms/stream_steps.hpp"

namespace oriel::kernels {

/// Streamed two-shot all-reduce by plain loads and stores, for large messages. Rank r owns the r-th
/// share, except in calls whose root owns none (see below). Each CTA has a part of every share and
/// moves it in chunks through rings of slots at the receiver. Each rank sends 2 (ranks - 1) / ranks
/// x bytes.
///
/// A call runs in steps; after each step, a rank raises one flag at every other rank. Step i sends
/// the inputs of chunk i, reduces chunk i - lead and stores its result everywhere. So both trips
/// share the links, and the one fence that each flag needs. The inputs of a chunk have mostly
/// arrived when a rank waits for them: they were sent while it reduced the `lead` chunks before.
///
/// Slots need no flags of their own against early reuse. A rank sends input chunk i only after it
/// has received and copied out all results of chunk i - depth. The result of a chunk also proves
/// that its owner has read the inputs.
///
/// Only a rank itself knows whether its buffers are registered, so each pair of ranks performs a
/// handshake (StreamHandshake). If both outputs lie at the same offset of the slots, the owner
/// stores results straight into the other's output. Otherwise it stores into the other's ring, from
/// which that rank copies. In the same way, a CPU owner reads the other's registered input in place
/// instead of having it sent. The handshake also carries the call's signature: ranks that disagree
/// abort at once.
///
/// In place is allowed: a chunk of the output is written only after all inputs of it were read.
///
/// GPUs send inputs, since stores across the link are faster than loads (8 % on an H200). They read
/// all inputs in calls that `stream.reads_inputs` names, if all ranks have their inputs at one
/// offset of the slots. The outputs that owners store to must likewise lie at one offset. Then no
/// ring is used and a call is one step, without a fence for each chunk.
///
/// A reduce-scatter has blocks for shares, and the owner keeps the result of a chunk. Among more
/// than two GPUs its inputs take both rings, so that chunks are longer (stream.whole_rings). In a
/// reduce, the owner stores the result at the root alone. The flag that follows still proves that
/// the inputs have been read.
///
/// A broadcast takes the same two trips (scatter and all-gather: van de Geijn). The root sends each
/// owner its share; if both outputs lie at one offset of the slots, it stores straight into the
/// output. The owners pass their shares on to all others. In a broadcast, and in long reduces on
/// GPUs, the root owns no share. Otherwise it would send, or receive, more than any other rank.
///
/// DataOps moves the elements and knows their type: a template over the group of threads on a GPU,
/// vectorised loops on a CPU. Its constructor touches no memory of the stream; begin() may. A
/// DataOps with kBroadcasts passes elements on instead of reducing them.
template <class Group, class DataOps>
class StreamAllReduce {
 public:
  ORIEL_DEVICE_FN StreamAllReduce(const AllReduceArguments& arguments, GridPlace place)
      : arguments_(arguments),
        ops_(arguments),
        steps_(arguments, place, DataOps::element_bytes(arguments)),
        chunks_(steps_.chunks()),
        lead_(arguments.stream.lead < chunks_ ? arguments.stream.lead : chunks_) {}

  /// Returns false, for all threads of the group, if a wait was given up; the output is then
  /// incomplete.
  ORIEL_DEVICE_FN bool run() {
    if (chunks_ == 0) return true;  // identical on all ranks
    device::grid_dependency_wait();
    device::grid_launch_dependents();
    ops_.begin();
    steps_.begin();
    StreamHandshake<Group> handshake(arguments_, steps_.places(), steps_.handshakes());
    handshake.send();
    // A rank that reads inputs in place must know from which ranks before it sends its first
    // inputs. A root must know where to store. A root stores into an owner's output once it has
    // that owner's handshake message: the kernels before the owner's, and their accesses, have
    // ended. Inputs may be stored in the output ring only then, because the owner may have copied
    // results out of it until then.
    const bool settles_first =
        DataOps::kPulls || DataOps::kBroadcasts || may_read_all() || arguments_.stream.whole_rings;
    if (settles_first && !handshake.receive(pulls_, direct_, ops_)) return false;
    if constexpr (DataOps::kReadsAll) {
      if (may_read_all() && reads_all()) return read_all();
    }
    for (std::uint32_t i = 0; i < lead_; ++i) {
      send_inputs(i);
      steps_.raise(i);
    }
    if (!settles_first && !handshake.receive(pulls_, direct_, ops_)) return false;

    std::uint32_t retired = 0;
    for (std::uint32_t i = 0; i < chunks_; ++i) {
      const std::uint32_t next = i + lead_;
      if (next < chunks_) {
        for (; retired + arguments_.stream.depth <= next; ++retired) {
          if (!retire(retired)) return false;
        }
        send_inputs(next);
      }
      if (!wait_for_inputs(i)) return false;
      if constexpr (DataOps::kBroadcasts) {
        pass_on(i);
      } else {
        reduce<false>(i);
      }
      steps_.raise(next);
    }
    for (; retired < chunks_; ++retired) {
      if (!retire(retired)) return false;
    }
    steps_.finish(chunks_ + lead_);  // retire() has synchronised
    return true;
  }

 private:
  using Span = typename StreamSteps<Group>::Span;

  ORIEL_DEVICE_FN bool pulls(int rank) const {
    return DataOps::kPulls && ((pulls_ >> rank) & 1) != 0;
  }
  /// Returns whether this rank's buffers allow that all ranks read all inputs.
  ORIEL_DEVICE_FN bool may_read_all() const {
    return DataOps::kReadsAll && arguments_.stream.reads_inputs &&
           arguments_.input_offset != kNoOffset &&
           (scatters() || arguments_.output_offset != kNoOffset);
  }
  /// Returns whether the buffers of all ranks allow it. All ranks agree, because the buffers then
  /// lie at one offset.
  ORIEL_DEVICE_FN bool reads_all() const {
    const std::uint64_t all = (std::uint64_t{2} << (arguments_.ranks - 1)) - 1;
    const std::uint64_t agreeing = scatters() ? pulls_ : pulls_ & direct_;
    return (agreeing | std::uint64_t{1} << arguments_.rank) == all;
  }
  /// Runs the call in one step. A handshake message has shown that its sender's kernels before have
  /// ended, so inputs may be read and outputs written.
  ORIEL_DEVICE_FN bool read_all() {
    // Handshake messages are read relaxed. After the fence this thread reads no older copy of an
    // input, which an earlier call may have left in the L1 cache.
    device::Memory::fence<device::Scope::system>();
    steps_.join_chunks();  // no ring limits the length
    reduce<true>(0);
    steps_.raise(0);  // this rank's results are stored, and it reads no inputs any more
    if (!steps_.wait_for_all(0)) return false;
    steps_.finish(1);
    return true;
  }
  ORIEL_DEVICE_FN bool scatters() const { return arguments_.block != 0; }
  ORIEL_DEVICE_FN bool direct(int rank) const { return ((direct_ >> rank) & 1) != 0; }

  ORIEL_DEVICE_FN void send_inputs(std::uint32_t i) {
    if (DataOps::kBroadcasts && !arguments_.is_root()) return;
    steps_.for_each_peer([&](int owner) {
      if (pulls(owner)) return;
      const Span part = steps_.span(owner, i);
      ops_.send(input_place(owner, i, part), part.first, part.count);
    });
  }
  /// Returns the place at which `owner` expects this rank's input.
  ORIEL_DEVICE_FN std::byte* input_place(int owner, std::uint32_t i, const Span& part) const {
    if (DataOps::kBroadcasts && direct(owner)) return steps_.output_at(owner, part);
    return steps_.ring(owner, Ring::input, i, arguments_.rank);
  }
  ORIEL_DEVICE_FN bool wait_for_inputs(std::uint32_t i) {
    // A rank whose input is read in place sends none. Its step still shows that its output ring has
    // room, so it is waited for if the result goes through that ring.
    return steps_.wait_for(
        i, [&](int rank) { return !(pulls(rank) && (scatters() || direct(rank))); });
  }

  /// Reduces chunk `i` of this rank's share. kReads: reads all inputs in place.
  template <bool kReads>
  ORIEL_DEVICE_FN void reduce(std::uint32_t i) {
    const int me = arguments_.rank;
    const Span part = steps_.span(me, i);
    const std::uint64_t offset = part.first * steps_.element_bytes();
    const auto source = [&](int rank) -> const std::byte* {
      if (rank == me) return arguments_.input + offset;
      if (kReads || pulls(rank))
        return steps_.places().slot(rank, arguments_.input_offset + offset);
      return steps_.ring(me, Ring::input, i, rank);
    };
    const auto target = [&](int rank) -> std::byte* {
      if (arguments_.root >= 0) rank = arguments_.root;
      if (rank == me || scatters()) {
        const std::uint64_t first = static_cast<std::uint64_t>(me) * arguments_.block;
        return arguments_.output + offset - first * steps_.element_bytes();
      }
      if (direct(rank)) return steps_.output_at(rank, part);
      return steps_.ring(rank, Ring::output, i, me);
    };
    const bool everywhere = !scatters() && arguments_.root < 0;
    ops_.reduce(source, target, everywhere ? arguments_.ranks : 1, part.count);
  }

  /// Passes chunk `i` of a broadcast, as received from the root, on to all other ranks.
  ORIEL_DEVICE_FN void pass_on(std::uint32_t i) {
    const int me = arguments_.rank;
    const Span part = steps_.span(me, i);
    if (part.count == 0) return;
    std::byte* const own = arguments_.output + part.first * steps_.element_bytes();
    const bool is_there = direct(arguments_.root);
    const std::byte* const from = is_there ? own : steps_.ring(me, Ring::input, i, arguments_.root);
    const auto target = [&](int rank) -> std::byte* {
      if (rank == arguments_.root) return nullptr;
      if (rank == me) return is_there ? nullptr : own;
      if (direct(rank)) return steps_.output_at(rank, part);
      return steps_.ring(rank, Ring::output, i, me);
    };
    ops_.pass_on(target, from, part.count);
  }

  /// Waits for the results of chunk `i` from all owners. Copies out of the ring the results that
  /// their owners could not store into the output.
  ORIEL_DEVICE_FN bool retire(std::uint32_t i) {
    if (!steps_.wait_for_all(i + lead_)) return false;
    const bool receives = DataOps::kBroadcasts ? !arguments_.is_root() : arguments_.keeps_result();
    if (!scatters() && receives) steps_.copy_out(i, direct_, ops_);
    return true;
  }

  const AllReduceArguments& arguments_;
  DataOps ops_;
  StreamSteps<Group> steps_;
  std::uint32_t chunks_;
  std::uint32_t lead_;        // chunks sent ahead of the one being reduced
  std::uint64_t pulls_ = 0;   // bit per rank: its input is read in place
  std::uint64_t direct_ = 0;  // bit per rank: its output is written in place
};

}  // namespace oriel::kernels
