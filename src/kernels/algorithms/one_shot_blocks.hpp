// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/algorithms/lines.hpp"
#include "kernels/algorithms/payload.hpp"
#include "kernels/algorithms/places.hpp"

namespace oriel::kernels {

/// One-shot all-gather and all-to-all: every rank sends its block to every other rank in lines, and
/// copies the lines that arrive to its output. Like one_shot() without the reduction: one trip over
/// the link, no barrier, no handshake and no credit, and buffers outside windows do.
///
/// Each thread moves the lines whose index is its own plus a multiple of the grid's size. Every
/// rank waits for a block of every other rank in every call, as slots of two parities require
/// (kParities).
///
/// Line::Element is the unit in which this rank reads and writes its buffers. On a GPU it is 4
/// bytes where all blocks allow it, else one byte. On a CPU it is one byte. All ranks have one kind
/// of line, but may differ in the unit. In place is allowed: a thread sends its lines before it
/// writes lines of the same index. Returns false if this thread gave up a wait; its part of the
/// output is then missing.
template <class Line, int kRanks, Collective kCollective, class Group>
ORIEL_DEVICE_FN bool one_shot_blocks(const AllReduceArguments& arguments, GridPlace place) {
  static_assert(kCollective == Collective::all_gather || kCollective == Collective::all_to_all);
  using T = typename Line::Element;
  using Block = UserBuffer<T, Line::kBytes>;
  constexpr bool kGathers = kCollective == Collective::all_gather;
  const Places places(arguments, place.cta);
  LineExchange<Line, kRanks> exchange(arguments, places, place, 1);
  const std::uint64_t bytes = arguments.share * size_of(arguments.type);
  const auto block = [&](auto* buffer, int rank) {
    return Block(buffer + static_cast<std::uint64_t>(rank) * bytes, bytes / sizeof(T));
  };
  const Block own_input = block(arguments.input, kGathers ? 0 : arguments.rank);
  const Block own_output = block(arguments.output, arguments.rank);
  const bool is_in_place =
      arguments.output + static_cast<std::uint64_t>(arguments.rank) * bytes ==
      arguments.input + (kGathers ? 0 : static_cast<std::uint64_t>(arguments.rank) * bytes);

  const std::uint64_t count = own_input.payloads();
  const std::uint64_t threads = Group::size();
  const std::uint64_t first = place.cta * threads;
  if (first >= count) return true;  // identical on all ranks; this CTA's epoch does not change

  device::grid_dependency_wait();
  device::grid_launch_dependents();
  exchange.begin();

  const std::uint64_t step = place.ctas * threads;
  bool alive = true;
  std::uint32_t slot = Group::rank();
  std::uint64_t line = first + Group::rank();
  while (alive && line < count) {
    const std::uint64_t batch = lines_in_flight(count - line, step);
    const auto slot_at = [&](std::uint64_t i) {
      return slot + static_cast<std::uint32_t>(i * threads);
    };
    typename Block::Value own{};
    for (std::uint64_t i = 0; i < batch; ++i) {
      const std::uint64_t at = line + i * step;
      if constexpr (kGathers) {
        own = own_input.load(at);
        exchange.send_to_all(0, slot_at(i), Line::encode(own));
      } else {
        typename Block::Packed values[LineExchange<Line, kRanks>::kMaxRanks];
        exchange.for_each_peer([&](int rank, int peer) {
          values[peer] = block(arguments.input, rank).load_packed(at);
        });
        exchange.for_each_peer([&](int rank, int peer) {
          const auto value = __builtin_bit_cast(typename Block::Value, values[peer]);
          exchange.send(rank, peer, 0, slot_at(i), Line::encode(value));
        });
        own = own_input.load(at);
      }
      if (!is_in_place) own_output.store(at, own);
    }
    exchange.publish();

    for (std::uint64_t i = 0; i < batch && alive; ++i) {
      typename LineExchange<Line, kRanks>::Arrivals arrivals;
      alive = exchange.receive_from_all(0, slot_at(i), arrivals);
      if (!alive) break;
      exchange.for_each_peer([&](int rank, int peer) {
        block(arguments.output, rank).store(line + i * step, Line::payload(arrivals.raw[peer]));
      });
    }
    line += batch * step;
    slot += static_cast<std::uint32_t>(batch * threads);
  }
  exchange.template end_epoch<Group>();
  return alive;
}

/// Returns whether this rank's blocks, or its message of a broadcast, are whole words of 4 bytes at
/// aligned addresses.
inline bool has_word_blocks(const AllReduceArguments& arguments) {
  const bool has_blocks = arguments.collective != Collective::broadcast;
  const std::uint64_t elements = has_blocks ? arguments.share : arguments.count;
  std::uint64_t places =
      reinterpret_cast<std::uintptr_t>(arguments.output) | elements * size_of(arguments.type);
  if (has_blocks || arguments.root == arguments.rank) {
    places |= reinterpret_cast<std::uintptr_t>(arguments.input);
  }
  return places % 4 == 0;
}

}  // namespace oriel::kernels
