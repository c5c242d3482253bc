// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/comm.hpp"
#include "oriel/device/config.hpp"

#include "kernels/algorithms/far_word.hpp"
#include "kernels/algorithms/fold_sources.hpp"
#include "kernels/algorithms/hierarchy_peers.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::kernels {

/// All-reduce, all-gather and reduce-scatter among groups of ranks: LSA teams, or single ranks. A
/// reduce is an all-reduce of which the root alone keeps the result.
///
/// The work is cut into units, each of which one rank finishes. In each other group, one rank
/// serves the unit. In an all-reduce, chunk c belongs in each group to the rank with index c mod
/// the group's size. Part g of chunk c is finished by the chunk's owner in group g. In the other
/// collectives, a rank finishes its own block. The server in another group has the finishing rank's
/// index mod that group's size.
///
/// A round has some units for each group, and goes through these stages:
///
///   1 Each rank sends its inputs to the ranks of its group that serve the units.
///   2 The servers reduce the inputs and send the sums to the ranks that finish the units.
///   3 The finishing ranks fold all groups' sums and send the results to the servers of other
///     groups.
///   4 The servers send the results to the ranks of their group.
///   5 The ranks of the group copy the results out.
///
/// A reduce-scatter ends with stage 3; an all-gather begins with it. In iteration i, a rank does
/// stage s of round i - s + 1, for all s in turn. So the network carries one round while the rank
/// works on another.
///
/// A small message takes one hop instead, among single ranks and in one round. Each rank sends
/// every other rank its input, or that rank's part of it. Each rank then folds what it has from all
/// ranks, or copies it out.
///
/// Deadlock. Each wait is for something that a peer does earlier in the order of (iteration,
/// stage), so there is no cycle. This holds for slots too. There are kHierarchyDepth regions of
/// slots; round r uses region r mod kHierarchyDepth. A rank writes for round r only after the owner
/// of the slots has reported the end of round r - kHierarchyDepth. The owner reports it in
/// iteration r - 2.
///
/// Groups of one rank need no such word. A rank that has sent for round r has ended round r - 4.
/// Before a rank sends for round r, it has received the data of round r - 2 from all ranks.
///
/// The last kHierarchyDepth rounds of a call are announced only at the beginning of the next call.
/// So every word goes to a rank that still waits for something of that round or a later one. Such a
/// rank has not left.
///
/// Every element is folded once, by one rank. In one hop, each rank folds all inputs itself. So all
/// ranks get the same bits. Inside a group and over the groups, the fold is the tree of reduce.hpp.
/// Groups exchange sums as accumulators.
///
/// In place is allowed: a unit of the output is written after all of this rank's inputs of it were
/// read.
///
/// If this rank's input or output lies in a window, the NIC may read data there, and not in a
/// staged copy. Other ranks need not know. The data must not be overwritten before the NIC has read
/// it:
///
///   - During the call: an all-reduce sends input of units that other ranks finish. This rank
///     writes such a unit once it has the result, which was made from the input sent. The other
///     collectives never write what they send. A result, once written, stays.
///
///   - After the call: an all-reduce's input has been read, because all results have arrived. Other
///     data is sent in place only in rounds that kAwaitedBehind more rounds follow; the last rounds
///     send from slots. A peer that sends for stage s of round r + 2, in iteration r + s + 1, has
///     ended iteration r + s. In that iteration it received all data of stage s of round r. This
///     rank receives the peer's data of round r + 2 in the same call.
///
/// So no call waits for its NIC at the end, when a peer may have left. A peer that has received
/// data does not accept a retransmission of it, whichever path fails. One hop always copies: its
/// messages are small, and no later round confirms them.
///
/// Group: the threads that work together, as in oriel/device/group.hpp. Its leads() also says
/// whether a thread is one of those that talk to the peers; thread 0 is among them. The leading
/// threads are the group Group::Lead. If they fail, they keep the failure until the group next
/// agrees (await_all), and send nothing more until then. So all threads take the same path.
///
/// DataOps: reads, moves and folds elements. M: the memory policy of waits. Construct it after
/// grid_dependency_wait(), because the constructor reads the groups' sizes.
template <class Group, class DataOps, class M = device::WorldMemory>
class Hierarchy : HierarchyPeers<Group, M> {
 public:
  ORIEL_DEVICE_FN explicit Hierarchy(const HierarchyArguments& arguments, Group group = Group())
      : Peers(arguments, group),
        ops_(arguments),
        raw_(arguments.plan.raw || (size_ == 1 && shape_.partial_bytes == shape_.element_bytes)) {}

  /// Returns false, for all threads of the group, if a wait was given up; the output is then
  /// incomplete.
  ORIEL_DEVICE_FN bool run() {
    ops_.begin();
    begin();
    const bool ran = arguments_.plan.one_hop ? run_one_hop() : run_rounds();
    const bool done = !group_.any(!ran || failed_);
    if (done && group_.rank() == 0) {
      device::Memory::store<device::Order::weak>(counter(kind_), base_ + rounds());
    }
    return done;
  }

 private:
  using Peers = HierarchyPeers<Group, M>;
  // Names members of the base, which depends on Group: lookup does not find them otherwise.
  using Peers::across_peers;
  using Peers::arguments_;
  using Peers::at;
  using Peers::await_all;
  using Peers::await_free_slots;
  using Peers::base_;
  using Peers::begin;
  using Peers::copy_slot;
  using Peers::counter;
  using Peers::each_across;
  using Peers::each_of_group;
  using Peers::failed_;
  using Peers::finished_slot;
  using Peers::group_;
  using Peers::group_peers;
  using Peers::grouping_;
  using Peers::here;
  using Peers::hop_slot;
  using Peers::index;
  using Peers::input_slot;
  using Peers::is_all_reduce;
  using Peers::is_near;
  using Peers::keeps_result_;
  using Peers::kind_;
  using Peers::partial_slot;
  using Peers::plain;
  using Peers::put;
  using Peers::result_slot;
  using Peers::rounds;
  using Peers::server;
  using Peers::serves;
  using Peers::shape_;
  using Peers::signal;
  using Peers::signal_done;
  using Peers::size_;
  using Peers::span;
  using Peers::staged_slot;
  using Peers::sums;
  using Peers::units_of;
  using typename Peers::Span;

  /// Returns whether the NIC may read the data of `round` in `buffer`, which the user may write
  /// again as soon as the call has ended.
  ORIEL_DEVICE_FN bool is_read_in_place(const NicSource& buffer, std::uint64_t round) const {
    return round + kAwaitedBehind < rounds() && is_known(buffer);
  }
  /// Returns whether the NIC can read `buffer`. All threads get the same answer. The window's
  /// `network` would not give it, because the host may clear it meanwhile.
  static ORIEL_DEVICE_FN bool is_known(const NicSource& buffer) {
    return buffer.window != nullptr && buffer.window->local.bytes != 0;
  }

  ORIEL_DEVICE_FN bool run_rounds() {
    signal_done(base_);
    const std::uint64_t all = rounds();
    const auto is_due = [&](std::uint64_t i, std::uint64_t stage) {
      return i >= stage && i - stage < all;
    };
    for (std::uint64_t i = 0; i < all + kStages - 1; ++i) {
      if (is_due(i, 0) && !give_inputs(i)) return false;
      if (is_due(i, 1) && !send_sums(i - 1)) return false;
      if (is_due(i, 2) && !finish_units(i - 2)) return false;
      if (is_due(i, 3) && !pass_results(i - 3)) return false;
      if (is_due(i, 4) && !copy_out(i - 4)) return false;
    }
    return true;
  }

  /// Calls `action(group, unit, span)` for every unit of a round that is not empty.
  template <class Action>
  ORIEL_DEVICE_FN void each_unit(std::uint64_t round, const Action& action) const {
    for (std::int32_t group = 0; group < grouping_.groups; ++group) {
      for (std::int32_t unit = 0; unit < units_of(group); ++unit) {
        const Span part = span(round, group, unit);
        if (part.count != 0) action(group, unit, part);
      }
    }
  }

  ORIEL_STAGE_FN bool give_inputs(std::uint64_t round) {
    if (!shape_.reduces || size_ == 1) return true;
    if (!await_free_slots(group_peers(), round)) return false;
    each_unit(round, [&](std::int32_t group, std::int32_t unit, const Span& part) {
      const std::int32_t to = server(grouping_.own, round, unit);
      if (to == grouping_.own_index) return;
      const std::uint64_t slot = input_slot(round, group, unit, grouping_.own_index);
      ops_.send(at(grouping_.member(grouping_.own, to), slot), part.in, part.count);
    });
    signal(group_peers(), offsetof(HierarchyLine, inputs), base_ + round + 1);
    return true;
  }

  /// Returns the own group's inputs to a unit that this rank serves.
  ORIEL_DEVICE_FN FoldSources inputs_of(std::uint64_t round, std::int32_t group, std::int32_t unit,
                                        const Span& part) const {
    return {here(input_slot(round, group, unit, 0)), plain(1), size_, grouping_.own_index,
            arguments_.input + part.in * shape_.element_bytes};
  }

  ORIEL_DEVICE_FN bool sends_input_in_place(std::uint64_t round) const {
    if (!raw_ || arguments_.op == ReduceOp::premul_sum) return false;
    return is_all_reduce() ? is_known(arguments_.nic_input)
                           : is_read_in_place(arguments_.nic_input, round);
  }

  ORIEL_STAGE_FN bool send_sums(std::uint64_t round) {
    if (!shape_.reduces) return true;
    if (size_ > 1 &&
        !await_all(group_peers(), offsetof(HierarchyLine, inputs), base_ + round + 1)) {
      return false;
    }
    if (grouping_.groups == 1) return true;
    if (!await_free_slots(across_peers(), round)) return false;
    each_unit(round, [&](std::int32_t group, std::int32_t unit, const Span& part) {
      if (group == grouping_.own || !serves(round, unit)) return;
      const std::int32_t to = grouping_.member(group, server(group, round, unit));
      const std::uint64_t there = partial_slot(round, group, unit, grouping_.own);
      if (is_near(to)) return ops_.send(at(to, there), part.in, part.count);
      if (sends_input_in_place(round)) {
        return put(to, there, arguments_.nic_input, part.in, part.count);
      }
      const std::uint64_t staged = staged_slot(round, group, unit);
      if (raw_) {
        ops_.send(here(staged), part.in, part.count);
      } else {
        ops_.fold_inputs(here(staged), inputs_of(round, group, unit, part), part.count);
      }
      put(to, there, staged, part.count * shape_.partial_bytes);
    });
    signal(across_peers(), offsetof(HierarchyLine, partials), base_ + round + 1);
    M::relax();  // lets the NIC begin
    return true;
  }

  /// Does stage 3 for one unit: stores the elements of the result at `result`.
  ORIEL_DEVICE_FN void finish(std::uint64_t round, std::int32_t unit, const Span& part,
                              std::byte* result) {
    const std::int32_t own = grouping_.own;
    const std::byte* const input = arguments_.input + part.in * shape_.element_bytes;
    if (!shape_.reduces) {
      if (result != input) ops_.copy(result, input, part.count);
      return;
    }
    const FoldSources given = inputs_of(round, own, unit, part);
    if (grouping_.groups == 1) return ops_.fold_all(result, given, part.count);
    FoldSources arrived{here(partial_slot(round, own, unit, 0)), sums(1), grouping_.groups, own,
                        input};
    if (raw_) return ops_.fold_all(result, arrived, part.count);
    std::byte* const sum = here(staged_slot(round, own, unit));
    ops_.fold_inputs(sum, given, part.count);
    group_.sync();
    arrived.own_source = sum;
    ops_.fold_sums(result, arrived, part.count);
  }

  /// Stores the result at the ranks of the own group.
  ORIEL_DEVICE_FN void spread(std::uint64_t round, std::int32_t group, std::int32_t unit,
                              const std::byte* result, std::uint64_t count) {
    const std::uint64_t slot = copy_slot(round, group, unit);
    each_of_group([&](std::int32_t peer) {
      ops_.copy(at(peer, slot), result, count);
      return true;
    });
  }

  ORIEL_STAGE_FN bool finish_units(std::uint64_t round) {
    const bool apart = grouping_.groups > 1;
    if (shape_.reduces && apart &&
        !await_all(across_peers(), offsetof(HierarchyLine, partials), base_ + round + 1)) {
      return false;
    }
    if (shape_.distributes &&
        !(await_free_slots(group_peers(), round) && await_free_slots(across_peers(), round))) {
      return false;
    }
    for (std::int32_t unit = 0; unit < units_of(grouping_.own); ++unit) {
      const Span part = span(round, grouping_.own, unit);
      if (part.count == 0 || !serves(round, unit)) continue;
      std::byte* const result = keeps_result_ ? arguments_.output + part.out * shape_.element_bytes
                                              : here(finished_slot(round, unit));
      finish(round, unit, part, result);
      if (!shape_.distributes) continue;
      group_.sync();
      spread(round, grouping_.own, unit, result, part.count);
      send_result(round, unit, part, result);
    }
    if (!shape_.distributes || !apart) return true;
    signal(across_peers(), offsetof(HierarchyLine, results), base_ + round + 1);
    M::relax();
    return true;
  }

  ORIEL_STAGE_FN void send_result(std::uint64_t round, std::int32_t unit, const Span& part,
                                  const std::byte* result) {
    const std::uint64_t finished = finished_slot(round, unit);
    bool staged = !keeps_result_;
    for (std::int32_t distance = 1; distance < grouping_.groups; ++distance) {
      const std::int32_t group = (grouping_.own + distance) % grouping_.groups;
      const std::int32_t to = grouping_.member(group, server(group, round, unit));
      const std::uint64_t there = result_slot(round, group, grouping_.own, unit);
      if (is_near(to)) {
        ops_.copy(at(to, there), result, part.count);
        continue;
      }
      if (is_read_in_place(arguments_.nic_output, round)) {
        put(to, there, arguments_.nic_output, part.out, part.count);
        continue;
      }
      if (!shape_.reduces && is_read_in_place(arguments_.nic_input, round)) {
        put(to, there, arguments_.nic_input, part.in, part.count);
        continue;
      }
      if (!staged) ops_.copy(here(finished), result, part.count);
      staged = true;
      put(to, there, finished, part.count * shape_.element_bytes);
    }
  }

  ORIEL_STAGE_FN bool pass_results(std::uint64_t round) {
    if (!shape_.distributes) return true;
    if (grouping_.groups > 1) {
      if (!await_all(across_peers(), offsetof(HierarchyLine, results), base_ + round + 1)) {
        return false;
      }
      each_unit(round, [&](std::int32_t group, std::int32_t unit, const Span& part) {
        if (group == grouping_.own || !serves(round, unit)) return;
        const std::byte* const result = here(result_slot(round, grouping_.own, group, unit));
        spread(round, group, unit, result, part.count);
        if (!keeps_result_) return;
        ops_.copy(arguments_.output + part.out * shape_.element_bytes, result, part.count);
      });
    }
    if (size_ > 1) signal(group_peers(), offsetof(HierarchyLine, copies), base_ + round + 1);
    return true;
  }

  ORIEL_STAGE_FN bool copy_out(std::uint64_t round) {
    if (shape_.distributes && size_ > 1) {
      if (!await_all(group_peers(), offsetof(HierarchyLine, copies), base_ + round + 1))
        return false;
      each_unit(round, [&](std::int32_t group, std::int32_t unit, const Span& part) {
        if (serves(round, unit) || !keeps_result_) return;
        ops_.copy(arguments_.output + part.out * shape_.element_bytes,
                  here(copy_slot(round, group, unit)), part.count);
      });
    }
    if (round + kHierarchyDepth < rounds()) signal_done(base_ + round + 1);
    return true;
  }

  /// Runs a small message: each rank receives its part of all inputs, and folds the parts or copies
  /// them out.
  ORIEL_STAGE_FN bool run_one_hop() {
    const bool scatters = !shape_.distributes;
    const std::int32_t own = grouping_.own;
    const std::uint64_t count = arguments_.count;
    const auto part_of = [&](std::int32_t rank) {
      return scatters ? static_cast<std::uint64_t>(rank) * count : 0;
    };
    const auto staged = [&](std::int32_t peer) {
      return hop_slot(grouping_.groups + (scatters ? peer : 0));
    };
    bool is_staged = false;
    each_across([&](std::int32_t peer) {
      if (is_near(peer)) {
        ops_.send(at(peer, hop_slot(own)), part_of(peer), count);
        return true;
      }
      if (scatters || !is_staged) ops_.send(here(staged(peer)), part_of(peer), count);
      is_staged = true;
      return true;
    });
    signal(across_peers(), offsetof(HierarchyLine, partials), base_ + 1, [&](std::int32_t peer) {
      return Ahead{here(staged(peer)), staged(peer), hop_slot(own), count * shape_.element_bytes};
    });
    M::relax();  // lets the NIC begin, also if all data has arrived already
    if (!await_all(across_peers(), offsetof(HierarchyLine, partials), base_ + 1)) return false;
    const std::byte* const input = arguments_.input + part_of(own) * shape_.element_bytes;
    if (!keeps_result_) return true;
    if (shape_.reduces) {
      ops_.fold_all(arguments_.output, {here(hop_slot(0)), plain(1), grouping_.groups, own, input},
                    count);
      return true;
    }
    for (std::int32_t rank = 0; rank < grouping_.groups; ++rank) {
      const std::byte* const from = rank == own ? input : here(hop_slot(rank));
      std::byte* const to = arguments_.output + index(rank, 1, 0) * count * shape_.element_bytes;
      if (to != from) ops_.copy(to, from, count);
    }
    return true;
  }

  static constexpr std::uint64_t kStages = 5;
  static constexpr std::uint64_t kAwaitedBehind = 2;
  static_assert(kHierarchyDepth > kStages - 1);

  DataOps ops_;
  bool raw_;  // this rank sends its input (scaled, if the operation scales), not sums
};

}  // namespace oriel::kernels

#undef ORIEL_STAGE_FN
