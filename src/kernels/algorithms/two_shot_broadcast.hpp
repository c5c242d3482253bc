// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/rounding.hpp"

#include "kernels/algorithms/lines.hpp"
#include "kernels/algorithms/payload.hpp"
#include "kernels/algorithms/places.hpp"

namespace oriel::kernels {

/// Broadcast in lines, in two trips. The root sends each other rank its share of the message; the
/// rank sends the share on to all others. Each byte leaves the root once. Buffers need not lie in
/// windows. It suits messages of middle size among more than two ranks.
///
/// Ranks to the right of the root own the shares, in this order. `share` is in lines. A thread
/// moves the same line of every share, and waits for no other thread.
///
/// Every rank waits for a line of every other rank at each index, as slots of two parities require
/// (kParities). So a share that ends early is filled with lines that nobody stores, and the root
/// receives all shares and drops them. A rank gets one line from each other rank at each index:
/// from the root, its own share's; so one slot for each is enough.
///
/// Line: as in one_shot_blocks(). In place is allowed. Returns false if this thread gave up a wait;
/// its part of the output is then missing.
template <class Line, int kRanks, class Group>
ORIEL_DEVICE_FN bool two_shot_broadcast(const AllReduceArguments& arguments, GridPlace place) {
  using T = typename Line::Element;
  using Buffer = UserBuffer<T, Line::kBytes>;
  using Value = typename Buffer::Value;
  const Places places(arguments, place.cta);
  LineExchange<Line, kRanks> exchange(arguments, places, place, 1);
  const std::uint64_t bytes = arguments.count * size_of(arguments.type);
  const Buffer input(arguments.input, bytes / sizeof(T));
  const Buffer output(arguments.output, bytes / sizeof(T));
  const bool is_root = arguments.is_root();
  const bool keeps = !is_root || arguments.input != arguments.output;

  const std::uint64_t lines = input.payloads();
  const std::uint64_t share = arguments.share;
  const std::uint64_t threads = Group::size();
  const std::uint64_t first = place.cta * threads;
  if (first >= share) return true;  // on all ranks: the epoch of this CTA does not change

  device::grid_dependency_wait();
  device::grid_launch_dependents();
  exchange.begin();

  const auto line_of = [&](int owner, std::uint64_t index) {
    int behind_root = owner - arguments.root - 1;
    if (behind_root < 0) behind_root += exchange.ranks();
    return static_cast<std::uint64_t>(behind_root) * share + index;
  };
  const auto store = [&](std::uint64_t line, const Value& value) {
    if (keeps && line < lines) output.store(line, value);
  };
  const std::uint64_t step = place.ctas * threads;
  bool alive = true;
  const std::uint32_t slot = Group::rank();
  const std::uint64_t index = first + Group::rank();
  const auto slot_at = [&](std::uint64_t i) {
    return slot + static_cast<std::uint32_t>(i * threads);
  };
  // Sends all lines before it awaits the first share, on GPUs too: each line has its slot.
  const std::uint64_t turns = index < share ? device::divide_up(share - index, step) : 0;
  for (std::uint64_t i = 0; i < turns && is_root; ++i) {
    // Issues all loads before the first store, so that they overlap.
    typename Buffer::Packed values[LineExchange<Line, kRanks>::kMaxRanks];
    exchange.for_each_peer([&](int owner, int peer) {
      const std::uint64_t line = line_of(owner, index + i * step);
      values[peer] = line < lines ? input.load_packed(line) : typename Buffer::Packed{};
    });
    exchange.for_each_peer([&](int owner, int peer) {
      const auto value = __builtin_bit_cast(Value, values[peer]);
      exchange.send(owner, peer, 0, slot_at(i), Line::encode(value));
      store(line_of(owner, index + i * step), value);
    });
  }
  for (std::uint64_t i = 0; i < turns && alive && !is_root; ++i) {
    typename LineExchange<Line, kRanks>::Arrivals arrivals;
    alive = exchange.receive_from(0, slot_at(i), arrivals,
                                  [&](int rank) { return rank == arguments.root; });
    if (!alive) break;
    Value mine{};
    exchange.for_each_peer([&](int rank, int peer) {
      if (rank == arguments.root) mine = Line::payload(arrivals.raw[peer]);
    });
    exchange.send_to_all(0, slot_at(i), Line::encode(mine));
    store(line_of(arguments.rank, index + i * step), mine);
  }
  if (alive) exchange.publish();
  for (std::uint64_t i = 0; i < turns && alive; ++i) {
    typename LineExchange<Line, kRanks>::Arrivals shares;
    alive = exchange.receive_from(0, slot_at(i), shares,
                                  [&](int rank) { return rank != arguments.root; });
    if (!alive || is_root) continue;
    exchange.for_each_peer([&](int owner, int peer) {
      if (owner == arguments.root) return;
      store(line_of(owner, index + i * step), Line::payload(shares.raw[peer]));
    });
  }
  exchange.template end_epoch<Group>();
  return alive;
}

}  // namespace oriel::kernels
