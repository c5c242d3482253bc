// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/algorithms/lines.hpp"
#include "kernels/algorithms/payload.hpp"
#include "kernels/algorithms/places.hpp"
#include "kernels/algorithms/reduction.hpp"

namespace oriel::kernels {

/// One-shot all-reduce: every rank sends its whole input to every other rank and reduces all inputs
/// by itself. Each line shows by its content that it has arrived. The call takes one trip over the
/// link and no barrier; each rank sends (ranks - 1) x bytes. It suits small messages. Only the own
/// rank reads the input and writes the output, so neither need be registered.
///
/// Each thread moves the lines whose index is its own plus a multiple of the grid's size. It waits
/// only for the same lines of other ranks: threads and CTAs never wait for each other.
///
/// In a reduce, all ranks receive all lines, and all but the root drop the result. Slot reuse
/// requires this: each rank must wait for data from every other rank in every call (see kParities).
///
/// In place is allowed: a thread sends a line before it writes the line. Returns false if this
/// thread gave up a wait; its part of the output is then missing.
template <class T, Family kFamily, int kRanks, class Line, class Group>
ORIEL_DEVICE_FN bool one_shot(const AllReduceArguments& arguments, GridPlace place) {
  const Places places(arguments, place.cta);
  LineExchange<Line, kRanks> exchange(arguments, places, place, 1);
  const UserBuffer<T, Line::kBytes> input(arguments.input, arguments.count);
  const UserBuffer<T, Line::kBytes> output(arguments.output, arguments.count);

  const std::uint64_t lines = input.payloads();
  const std::uint64_t threads = Group::size();
  const std::uint64_t first = place.cta * threads;
  if (first >= lines) return true;  // identical on all ranks; this CTA's epoch does not change

  device::grid_dependency_wait();
  device::grid_launch_dependents();
  exchange.begin();
  FamilyReduction<T, kFamily> reduction(arguments);
  reduction.begin(arguments);

  const std::uint64_t step = place.ctas * threads;
  Payload<T, Line::kBytes> mine{};
  bool alive = true;
  std::uint32_t slot = Group::rank();
  std::uint64_t line = first + Group::rank();
  const auto slot_at = [&](std::uint64_t i) {
    return slot + static_cast<std::uint32_t>(i * threads);
  };
  while (alive && line < lines) {
    const std::uint64_t batch = lines_in_flight(lines - line, step);
    for (std::uint64_t i = 0; i < batch; ++i) {
      mine = reduction.scale(input.load(line + i * step));
      exchange.send_to_all(0, slot_at(i), Line::encode(mine));
    }
    exchange.publish();

    for (std::uint64_t i = 0; i < batch && alive; ++i) {
      typename LineExchange<Line, kRanks>::Arrivals arrivals;
      alive = exchange.receive_from_all(0, slot_at(i), arrivals);
      if (!alive) break;
      if (kSendsAhead) mine = reduction.scale(input.load(line + i * step));
      const auto result = exchange.reduce(reduction, mine, arrivals);
      if (arguments.keeps_result()) output.store(line + i * step, result);
    }
    line += batch * step;
    slot += static_cast<std::uint32_t>(batch * threads);
  }
  exchange.template end_epoch<Group>();
  return alive;
}

}  // namespace oriel::kernels
