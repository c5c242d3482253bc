// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/algorithms/greeting.hpp"
#include "kernels/algorithms/lines.hpp"
#include "kernels/algorithms/places.hpp"

namespace oriel::kernels {

/// Streamed two-shot all-reduce by plain loads and stores, for large messages. Rank r owns the r-th
/// share, but where a root is spared (below); each CTA has a part of every share and moves it in
/// chunks through rings of slots at the owner. (ranks - 1) / ranks x 2 x bytes sent by each rank.
///
/// A call goes in steps, and after each a rank raises one flag at every other rank. Step i sends
/// the inputs of chunk i, and reduces chunk i - lead and stores its result everywhere. So both
/// trips share the links and the fences, of which a flag needs one, and a rank that waits for the
/// inputs of a chunk mostly finds them: they were sent while it reduced the `lead` chunks before.
///
/// No slot is overwritten too early, without any flag for that: a rank sends input chunk i only
/// after it has received, and copied out, all results of chunk i - depth; and the result of a chunk
/// says that its owner has read the inputs.
///
/// Whether a user buffer is registered is known to its rank only, so each pair of ranks settles it
/// with a greeting: if both have their output at the same offset of the slots, the owner stores
/// results straight into the other's output, else into its ring, from which that rank copies. In
/// the same way a CPU owner reads the other's input where it lies instead of having it sent; on a
/// GPU stores across the link are faster than loads (8 % on an H200), so inputs are always sent. A
/// greeting also carries the call's signature: ranks that disagree give up at once.
///
/// In place is allowed: a chunk of the output is written only after all inputs of it were read.
///
/// A reduce-scatter has blocks for shares, and the owner keeps the result of a chunk. In a reduce
/// the owner stores it at the root alone. The flag that follows still says that the inputs have
/// been read.
///
/// A broadcast takes the same two trips: the root sends each owner its share, straight into the
/// output where both have theirs at one offset of the slots, and the owners pass it on to all
/// others (scatter and all-gather: van de Geijn). There, and in long reduces on GPUs, the root owns
/// no share, or it would send, or receive, more than any other rank.
///
/// Mover does the moving of elements (and knows their type): a template over the group of threads
/// on a GPU, vectorised loops on a CPU. To make one touches no memory of the stream's; begin() may.
/// One that kBroadcasts passes elements on in place of reducing them.
template <class Group, class Mover>
class StreamAllReduce {
 public:
  ORIEL_DEVICE_FN StreamAllReduce(const AllReduceArguments& arguments, GridPlace place)
      : arguments_(arguments),
        places_(arguments, place.cta),
        mover_(arguments),
        element_bytes_(Mover::element_bytes(arguments)) {
    // Multiples of the golden ratio, modulo 1, divide any number of CTAs evenly; without a
    // division.
    const std::uint32_t turn = place.cta * 40503u & 0xffffu;
    first_peer_ = arguments.rank + 1 +
                  static_cast<int>(turn * static_cast<std::uint32_t>(arguments.ranks - 1) >> 16);
    if (first_peer_ >= arguments.ranks) first_peer_ -= arguments.ranks;
    begin_ = smaller(place.cta * arguments.part, arguments.share);
    end_ = smaller(begin_ + arguments.part, arguments.share);
    chunk_ = arguments.stream.chunk_bytes / element_bytes_;
    chunks_ = static_cast<std::uint32_t>((end_ - begin_ + chunk_ - 1) / chunk_);
    lead_ = arguments.stream.lead < chunks_ ? arguments.stream.lead : chunks_;
  }

  /// False, for all threads of the group, if a wait was given up: the output is not there.
  ORIEL_DEVICE_FN bool run() {
    if (chunks_ == 0) return true;  // the same on all ranks
    device::grid_dependency_wait();
    device::grid_launch_dependents();
    mover_.begin();
    const CtaCounters* counters = places_.counters();
    ring_base_ = device::Memory::load<device::Order::weak>(&counters->chunk);
    step_base_ = device::Memory::load<device::Order::weak>(&counters->step);
    const std::uint32_t greeting = device::Memory::load<device::Order::weak>(&counters->greeting);

    Greetings<Group> greetings(arguments_, places_, greeting);
    greetings.send();
    // Who reads inputs in place must know of whom before the first is sent, and a root where to. A
    // root stores into an output on the word of a greeting alone: the kernels before its owner's
    // have ended, and their accesses with them.
    constexpr bool kSettlesFirst = Mover::kPulls || Mover::kBroadcasts;
    if (kSettlesFirst && !greetings.receive(pulls_, direct_, mover_)) return false;
    for (std::uint32_t i = 0; i < lead_; ++i) {
      send_inputs(i);
      raise(i);
    }
    if (!kSettlesFirst && !greetings.receive(pulls_, direct_, mover_)) return false;

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
      if constexpr (Mover::kBroadcasts) {
        pass_on(i);
      } else {
        reduce(i);
      }
      raise(next);
    }
    for (; retired < chunks_; ++retired) {
      if (!retire(retired)) return false;
    }
    if (Group::rank() == 0) {  // retire() has synchronised: all threads have read the counters
      CtaCounters* const mine = places_.counters();
      // Between calls the rings are empty. The count must not wrap inside one: where depth is no
      // power of two, neighbouring chunks would share a slot.
      const std::uint32_t chunk = ring_base_ + chunks_;
      device::Memory::store<device::Order::weak>(&mine->chunk, chunk >> 31 != 0 ? 0u : chunk);
      device::Memory::store<device::Order::weak>(&mine->step, step_base_ + chunks_ + lead_);
      device::Memory::store<device::Order::weak>(&mine->greeting, greeting + 1);
    }
    return true;
  }

 private:
  /// First element of chunk `i` of `owner`'s share, and how many it has: the last shares are short,
  /// and those of ranks that own nothing lie behind the end.
  struct Span {
    std::uint64_t first;
    std::uint64_t count;
  };
  ORIEL_DEVICE_FN Span span(int owner, std::uint32_t i) const {
    const std::uint64_t from = begin_ + i * chunk_;
    const std::uint64_t to = smaller(from + chunk_, end_);
    int place = owner - arguments_.stream.first_owner;
    if (place < 0) place += arguments_.ranks;
    const std::uint64_t share = static_cast<std::uint64_t>(place) * arguments_.share;
    const std::uint64_t first = smaller(share + from, arguments_.count);
    return {first, smaller(share + to, arguments_.count) - first};
  }

  ORIEL_DEVICE_FN int next(int rank) const { return rank + 1 < arguments_.ranks ? rank + 1 : 0; }
  /// Each CTA begins with another peer, so that a rank always sends to all of them at once. If all
  /// its CTAs went to one peer after the other, ranks that began at different times would meet at
  /// one receiver, while other links are idle (docs/performance.md).
  template <class Action>
  ORIEL_DEVICE_FN void for_each_peer(const Action& action) const {
    int rank = first_peer_;
    for (int i = 1; i < arguments_.ranks; ++i) {
      action(rank);
      rank = next(rank);
      if (rank == arguments_.rank) rank = next(rank);
    }
  }

  ORIEL_DEVICE_FN bool pulls(int rank) const {
    return Mover::kPulls && ((pulls_ >> rank) & 1) != 0;
  }
  ORIEL_DEVICE_FN bool scatters() const { return arguments_.block != 0; }
  ORIEL_DEVICE_FN bool direct(int rank) const { return ((direct_ >> rank) & 1) != 0; }

  ORIEL_DEVICE_FN void send_inputs(std::uint32_t i) {
    if (Mover::kBroadcasts && !arguments_.is_root()) return;
    for_each_peer([&](int owner) {
      if (pulls(owner)) return;
      const Span part = span(owner, i);
      mover_.send(input_place(owner, i, part), part.first, part.count);
    });
  }
  /// Where `owner` finds this rank's input.
  ORIEL_DEVICE_FN std::byte* input_place(int owner, std::uint32_t i, const Span& part) const {
    if (Mover::kBroadcasts && direct(owner)) return output_at(owner, part);
    return places_.ring(owner, Ring::input, ring_base_ + i, arguments_.rank);
  }
  /// A part of the output of a rank to which direct() applies.
  ORIEL_DEVICE_FN std::byte* output_at(int rank, const Span& part) const {
    return places_.slot(rank, arguments_.output_offset + part.first * element_bytes_);
  }

  /// Tells all ranks that what this group has stored up to `step` is there.
  ORIEL_DEVICE_FN void raise(std::uint32_t step) {
    Group::sync();
    for (int rank = static_cast<int>(Group::rank()); rank < arguments_.ranks;
         rank += static_cast<int>(Group::size())) {
      if (rank == arguments_.rank) continue;
      device::Memory::store<device::Order::release>(places_.flag(rank, arguments_.rank),
                                                    step_base_ + step + 1);
    }
#if !ORIEL_DEVICE_CODE
    device::ring_fence();
    for_each_peer([&](int rank) { device::ring_fenced(places_.doorbell(rank)); });
#endif
  }

  /// Waits until all chosen ranks have done `step`.
  template <class Chosen>
  ORIEL_DEVICE_FN bool wait_for(std::uint32_t step, const Chosen& chosen) {
    const std::uint32_t goal = step_base_ + step + 1;
    bool alive = true;
    for (int rank = static_cast<int>(Group::rank()); rank < arguments_.ranks && alive;
         rank += static_cast<int>(Group::size())) {
      if (rank == arguments_.rank || !chosen(rank)) continue;
      const std::uint32_t* flag = places_.flag(arguments_.rank, rank);
      const auto reached = [&] {
        const auto value = device::Memory::load<device::Order::acquire>(flag);
        return static_cast<std::int32_t>(value - goal) >= 0;
      };
      alive =
          device::wait_until(reached, arguments_.wait, {rank, goal}) == device::WaitOutcome::ready;
    }
    return !Group::any(!alive);
  }

  ORIEL_DEVICE_FN bool wait_for_inputs(std::uint32_t i) {
    // A rank whose input is read in place sends none, but its step says that its output ring has
    // room.
    return wait_for(i, [&](int rank) { return !(pulls(rank) && (scatters() || direct(rank))); });
  }

  ORIEL_DEVICE_FN void reduce(std::uint32_t i) {
    const int me = arguments_.rank;
    const Span part = span(me, i);
    const std::uint64_t offset = part.first * element_bytes_;
    const auto source = [&](int rank) -> const std::byte* {
      if (rank == me) return arguments_.input + offset;
      if (pulls(rank)) return places_.slot(rank, arguments_.input_offset + offset);
      return places_.ring(me, Ring::input, ring_base_ + i, rank);
    };
    const auto target = [&](int rank) -> std::byte* {
      if (arguments_.root >= 0) rank = arguments_.root;
      if (rank == me || scatters()) {
        const std::uint64_t first = static_cast<std::uint64_t>(me) * arguments_.block;
        return arguments_.output + offset - first * element_bytes_;
      }
      if (direct(rank)) return output_at(rank, part);
      return places_.ring(rank, Ring::output, ring_base_ + i, me);
    };
    const bool everywhere = !scatters() && arguments_.root < 0;
    mover_.reduce(source, target, everywhere ? arguments_.ranks : 1, part.count);
  }

  /// A broadcast: brings what the root has sent of chunk `i` to all others.
  ORIEL_DEVICE_FN void pass_on(std::uint32_t i) {
    const int me = arguments_.rank;
    const Span part = span(me, i);
    if (part.count == 0) return;
    std::byte* const own = arguments_.output + part.first * element_bytes_;
    const bool is_there = direct(arguments_.root);
    const std::byte* const from =
        is_there ? own : places_.ring(me, Ring::input, ring_base_ + i, arguments_.root);
    const auto target = [&](int rank) -> std::byte* {
      if (rank == arguments_.root) return nullptr;
      if (rank == me) return is_there ? nullptr : own;
      if (direct(rank)) return output_at(rank, part);
      return places_.ring(rank, Ring::output, ring_base_ + i, me);
    };
    mover_.pass_on(target, from, part.count);
  }

  /// Waits for the results of chunk `i` from all owners and copies what they could not store into
  /// the output themselves.
  ORIEL_DEVICE_FN bool retire(std::uint32_t i) {
    if (!wait_for(i + lead_, [](int) { return true; })) return false;
    const bool hears = Mover::kBroadcasts ? !arguments_.is_root() : arguments_.keeps_result();
    if (scatters() || !hears) return true;
    for_each_peer([&](int owner) {
      if (direct(owner)) return;
      const Span part = span(owner, i);
      mover_.copy_out(part.first,
                      places_.ring(arguments_.rank, Ring::output, ring_base_ + i, owner),
                      part.count);
    });
    return true;
  }

  const AllReduceArguments& arguments_;
  Places places_;
  Mover mover_;
  std::uint64_t element_bytes_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t chunk_ = 0;
  std::uint32_t chunks_ = 0;
  int first_peer_ = 0;
  std::uint32_t lead_ = 0;       // chunks sent ahead of the one that is reduced
  std::uint32_t ring_base_ = 0;  // chunks of earlier calls: where the rings stand
  std::uint32_t step_base_ = 0;  // steps of earlier calls: where the flags stand
  std::uint64_t pulls_ = 0;      // bit per rank: its input is read where it lies
  std::uint64_t direct_ = 0;     // bit per rank: its output is written where it lies
};

}  // namespace oriel::kernels
