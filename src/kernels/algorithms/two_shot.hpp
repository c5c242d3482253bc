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
/// owner its share of the input; the owner reduces the share and sends the result to all. The call
/// takes two trips over the link and no barrier. Each rank sends 2 (ranks - 1) / ranks x bytes. It
/// suits messages of middle size. Only the own rank accesses user buffers, so neither need be
/// registered.
///
/// A reduce-scatter is the first of the two trips. Its shares are the blocks, which begin at
/// elements and not at lines, and the owners keep the results. A line needs one slot only, so twice
/// the lines fit.
///
/// In a reduce, the owners send results to all ranks, and all but the root drop them. Otherwise a
/// rank with an empty share would wait for nobody, run ahead, and overwrite lines that others have
/// not yet read.
///
/// A thread moves the same line of every share, in both trips, and waits for no other thread. In
/// place is allowed: a thread sends its line of every share before it writes any of them. Returns
/// false if this thread gave up a wait; its part of the output is then missing.
template <class T, Family kFamily, int kRanks, class Line, class Group>
ORIEL_DEVICE_FN bool two_shot(const AllReduceArguments& arguments, GridPlace place) {
  const Places places(arguments, place.cta);
  const bool scatters = arguments.block != 0;
  LineExchange<Line, kRanks> exchange(arguments, places, place, scatters ? 1 : 2);
  const std::uint64_t count = scatters ? arguments.block : arguments.count;
  const std::uint64_t block_bytes = arguments.block * sizeof(T);
  const UserBuffer<T, Line::kBytes> output(arguments.output, count);

  const int me = arguments.rank;
  const std::uint64_t lines = output.payloads();
  const std::uint64_t share = arguments.share;
  const bool keeps = arguments.keeps_result();
  const std::uint64_t line_step = scatters ? 0 : share;
  const std::uint64_t threads = Group::size();
  const std::uint64_t first = place.cta * threads;
  if (first >= share) return true;  // identical on all ranks; this CTA's epoch does not change

  device::grid_dependency_wait();
  device::grid_launch_dependents();
  exchange.begin();
  FamilyReduction<T, kFamily> reduction(arguments);
  reduction.begin(arguments);

  const std::uint64_t step = place.ctas * threads;

  // The last shares may be short or empty: no line past the end is sent. Share 0 has every index,
  // so each CTA that takes part still receives from all ranks.
  const auto line_of = [&](int owner, std::uint64_t index) {
    return static_cast<std::uint64_t>(owner) * line_step + index;
  };
  const auto load = [&](int owner, std::uint64_t line) {
    const std::byte* const block =
        arguments.input + static_cast<std::uint64_t>(owner) * block_bytes;
    return UserBuffer<T, Line::kBytes>(block, count).load_packed(line);
  };
  using Value = Payload<T, Line::kBytes>;
  using Packed = PayloadWords<Line::kBytes>;
  bool alive = true;
  std::uint32_t slot = Group::rank();
  std::uint64_t index = first + Group::rank();
  const auto slot_at = [&](std::uint64_t i) {
    return slot + static_cast<std::uint32_t>(i * threads);
  };
  while (alive && index < share) {
    const std::uint64_t batch = lines_in_flight(share - index, step);
    Packed mine{};
    for (std::uint64_t i = 0; i < batch; ++i) {
      // Issues all loads before the first store, so that they overlap. Sets lines past the end too:
      // otherwise their registers would be in use in the whole loop.
      Packed outgoing[LineExchange<Line, kRanks>::kMaxRanks];
      exchange.for_each_peer([&](int owner, int peer) {
        const std::uint64_t line = line_of(owner, index + i * step);
        outgoing[peer] = line < lines ? load(owner, line) : Packed{};
      });
      if (!kSendsAhead && line_of(me, index) < lines) mine = load(me, line_of(me, index));
      exchange.for_each_peer([&](int owner, int peer) {
        if (line_of(owner, index + i * step) >= lines) return;
        const auto value = reduction.scale(__builtin_bit_cast(Value, outgoing[peer]));
        exchange.send(owner, peer, 0, slot_at(i), Line::encode(value));
      });
    }
    exchange.publish();

    for (std::uint64_t i = 0; i < batch && alive; ++i) {
      const std::uint64_t line = line_of(me, index + i * step);
      if (line >= lines) break;
      if (kSendsAhead) mine = load(me, line);
      const Value scaled = reduction.scale(__builtin_bit_cast(Value, mine));
      typename LineExchange<Line, kRanks>::Arrivals arrivals;
      alive = exchange.receive_from_all(0, slot_at(i), arrivals);
      if (!alive) break;
      const auto result = exchange.reduce(reduction, scaled, arrivals);
      if (!scatters) exchange.send_to_all(1, slot_at(i), Line::encode(result));
      if (keeps) output.store(line, result);
    }
    if (!alive) break;
    if (!scatters) exchange.publish();

    for (std::uint64_t i = 0; i < batch && alive && !scatters; ++i) {
      const auto exists = [&](int owner) { return line_of(owner, index + i * step) < lines; };
      typename LineExchange<Line, kRanks>::Arrivals
          results{};  // short shares leave some entries unset
      alive = exchange.receive_from(1, slot_at(i), results, exists);
      if (!alive) break;
      exchange.for_each_peer([&](int owner, int peer) {
        if (!keeps || !exists(owner)) return;
        output.store(line_of(owner, index + i * step), Line::payload(results.raw[peer]));
      });
    }
    index += batch * step;
    slot += static_cast<std::uint32_t>(batch * threads);
  }
  exchange.template end_epoch<Group>();
  return alive;
}

}  // namespace oriel::kernels
