// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/algorithms/lines.hpp"
#include "kernels/algorithms/payload.hpp"
#include "kernels/algorithms/places.hpp"
#include "kernels/algorithms/reduction.hpp"

namespace oriel::kernels {

/// Two-shot all-reduce in lines: rank r owns the r-th share of the message. Every rank sends each
/// owner its share of the input, the owner reduces it and sends the result to all. Two trips over
/// the link, no barrier, 2 (ranks - 1) / ranks x bytes sent by each rank: the choice for messages
/// of middle size. Reads and writes user buffers only locally, so neither need be registered.
///
/// A thread does the same line of every share, in both trips, and waits for no other thread.
/// In place is allowed: a thread has sent its line of every share before it writes any of them.
template <class T, Family kFamily, int kRanks, class Line, class Group>
ORIEL_DEVICE_FN void two_shot(const AllReduceArguments& arguments, GridPlace place) {
  device::grid_launch_dependents();
  device::grid_dependency_wait();

  const Places places(arguments, place.cta);
  const Lanes<Line, kRanks> lanes(arguments, places, 2);
  const FamilyReduction<T, kFamily> reduction(arguments);
  const UserBuffer<T, Line::kBytes> input(arguments.input, arguments.count);
  const UserBuffer<T, Line::kBytes> output(arguments.output, arguments.count);

  const int me = arguments.rank;
  const std::uint64_t lines = input.payloads();
  const std::uint64_t share = arguments.share;
  const std::uint64_t threads = Group::size();
  const std::uint64_t first = place.cta * threads;
  if (first >= share) return;  // the same on all ranks; this CTA's epoch stays as it is

  const std::uint64_t step = place.ctas * threads;

  // The last shares may be short, or empty: nothing is sent for lines past the end. Share 0 has
  // every index, so that each CTA that takes part still hears from all ranks.
  const auto line_of = [&](int owner, std::uint64_t index) {
    return static_cast<std::uint64_t>(owner) * share + index;
  };
  bool alive = true;
  std::uint64_t slot = Group::rank();
  std::uint64_t index = first + Group::rank();
  while (alive && index < share) {
    const std::uint64_t batch = lines_in_flight(share - index, step);
    for (std::uint64_t i = 0; i < batch; ++i) {
      lanes.for_each_peer([&](int owner) {
        const std::uint64_t line = line_of(owner, index + i * step);
        if (line >= lines) return;
        lanes.send(owner, 0, slot + i * threads, Line::encode(reduction.scale(input.load(line))));
      });
    }
    lanes.publish();

    for (std::uint64_t i = 0; i < batch && alive; ++i) {
      const std::uint64_t line = line_of(me, index + i * step);
      if (line >= lines) break;
      const auto mine = reduction.scale(input.load(line));
      typename Lanes<Line, kRanks>::Arrivals arrivals;
      alive = lanes.receive_from_all(0, slot + i * threads, arrivals);
      if (!alive) break;
      const auto result = fold_ranks<kRanks, Line::kBytes>(
          reduction, arguments.ranks,
          [&](int rank) { return rank == me ? mine : arrivals.template payload<T>(rank); });
      lanes.send_to_all(1, slot + i * threads, Line::encode(result));
      output.store(line, result);
    }
    if (!alive) break;
    lanes.publish();

    for (std::uint64_t i = 0; i < batch && alive; ++i) {
      const auto exists = [&](int owner) { return line_of(owner, index + i * step) < lines; };
      typename Lanes<Line, kRanks>::Arrivals results;
      alive = lanes.receive_from(1, slot + i * threads, results, exists);
      if (!alive) break;
      lanes.for_each_source([&](int owner) {
        if (!exists(owner)) return;
        output.store(line_of(owner, index + i * step), results.template payload<T>(owner));
      });
    }
    index += batch * step;
    slot += batch * threads;
  }
  lanes.template end_epoch<Group>();
}

}  // namespace oriel::kernels
