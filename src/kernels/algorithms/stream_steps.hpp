// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/rounding.hpp"

#include "kernels/algorithms/lines.hpp"
#include "kernels/algorithms/places.hpp"

namespace oriel::kernels {

/// Divides the work of a stream, raises its flags and waits for them. Each rank owns a share of the
/// elements. A group (a CTA, a sub-CTA or a CPU thread) has a part of every share and moves it in
/// chunks. After each step, the group raises one flag at every other rank. Counts continue over all
/// calls.
template <class Group>
class StreamSteps {
 public:
  ORIEL_DEVICE_FN StreamSteps(const AllReduceArguments& arguments, GridPlace place,
                              std::uint64_t element_bytes)
      : arguments_(arguments), places_(arguments, place.cta), element_bytes_(element_bytes) {
    // Spreads the first peers of any number of CTAs evenly, by multiples of the golden ratio modulo
    // 1. Needs no division.
    const std::uint32_t turn = place.cta * 40503u & 0xffffu;
    first_peer_ = arguments.rank + 1 +
                  static_cast<int>(turn * static_cast<std::uint32_t>(arguments.ranks - 1) >> 16);
    if (first_peer_ >= arguments.ranks) first_peer_ -= arguments.ranks;
    chunk_ = arguments.stream.chunk_bytes / element_bytes_;
    take_part(place.cta, arguments.part);
  }

  /// Sets the group's part of every share: part `index`, of `part` elements.
  ORIEL_DEVICE_FN void take_part(std::uint32_t index, std::uint64_t part) {
    begin_ = smaller(index * part, arguments_.share);
    end_ = smaller(begin_ + part, arguments_.share);
    chunks_ = static_cast<std::uint32_t>(device::divide_up(end_ - begin_, chunk_));
  }

  /// Returns the number of chunks that the group has of each share; equal on all ranks.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t chunks() const { return chunks_; }
  [[nodiscard]] ORIEL_DEVICE_FN const Places& places() const { return places_; }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t element_bytes() const { return element_bytes_; }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t handshakes() const { return handshakes_; }

  /// Reads the positions of the rings and flags. Call it after grid_dependency_wait().
  ORIEL_DEVICE_FN void begin() {
    const CtaCounters* counters = places_.counters();
    ring_base_ = device::Memory::load<device::Order::weak>(&counters->chunk);
    step_base_ = device::Memory::load<device::Order::weak>(&counters->step);
    handshakes_ = device::Memory::load<device::Order::weak>(&counters->handshakes);
  }
  /// Stores the positions after a call of `steps` steps. All threads must have read the counters.
  ORIEL_DEVICE_FN void finish(std::uint32_t steps) {
    if (Group::rank() != 0) return;
    CtaCounters* const mine = places_.counters();
    // Resets the count between calls, when the rings are empty. It must not wrap inside a call: if
    // depth is no power of two, neighbouring chunks would share a slot.
    const std::uint32_t chunk = ring_base_ + chunks_;
    device::Memory::store<device::Order::weak>(&mine->chunk, chunk >> 31 != 0 ? 0u : chunk);
    device::Memory::store<device::Order::weak>(&mine->step, step_base_ + steps);
    device::Memory::store<device::Order::weak>(&mine->handshakes, handshakes_ + 1);
  }

  /// First element and number of elements of chunk `i` of `owner`'s share. The last shares are
  /// short. Shares of ranks that own nothing lie behind the end.
  struct Span {
    std::uint64_t first;
    std::uint64_t count;
  };
  [[nodiscard]] ORIEL_DEVICE_FN Span span(int owner, std::uint32_t i) const {
    const std::uint64_t from = begin_ + i * chunk_;
    const std::uint64_t to = smaller(from + chunk_, end_);
    int place = owner - arguments_.stream.first_owner;
    if (place < 0) place += arguments_.ranks;
    const std::uint64_t share = static_cast<std::uint64_t>(place) * arguments_.share;
    const std::uint64_t first = smaller(share + from, arguments_.count);
    return {first, smaller(share + to, arguments_.count) - first};
  }

  /// Makes all chunks one.
  ORIEL_DEVICE_FN void join_chunks() {
    chunk_ = end_ - begin_;
    chunks_ = 1;
  }

  /// Calls `action(rank)` for every other rank. Each CTA begins with a different peer, so that a
  /// rank sends to all of them at once. If all CTAs served one peer after the other, ranks that
  /// began at different times would collide at one receiver. Other links would then be idle
  /// (docs/notes/all-reduce.md).
  template <class Action>
  ORIEL_DEVICE_FN void for_each_peer(const Action& action) const {
    int rank = first_peer_;
    for (int i = 1; i < arguments_.ranks; ++i) {
      action(rank);
      rank = next(rank);
      if (rank == arguments_.rank) rank = next(rank);
    }
  }

  /// Returns the slot of chunk `i` in a ring of `owner`'s, for data from `other`.
  [[nodiscard]] ORIEL_DEVICE_FN std::byte* ring(int owner, Ring ring, std::uint32_t i,
                                                int other) const {
    return places_.ring(owner, ring, ring_base_ + i, other);
  }
  /// Returns the address of a part of a rank's output. Only if that output lies at the same offset
  /// as this rank's.
  [[nodiscard]] ORIEL_DEVICE_FN std::byte* output_at(int rank, const Span& part) const {
    return places_.slot(rank, arguments_.output_offset + part.first * element_bytes_);
  }

  /// Raises the flag at all other ranks: all stores of this group up to `step` are then visible.
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

  /// Waits until all chosen ranks have done `step`. Returns false, for all threads of the group, if
  /// the wait was given up.
  template <class Chosen>
  [[nodiscard]] ORIEL_DEVICE_FN bool wait_for(std::uint32_t step, const Chosen& chosen) {
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
  /// Waits until all other ranks have done `step`. Returns as wait_for() does.
  [[nodiscard]] ORIEL_DEVICE_FN bool wait_for_all(std::uint32_t step) {
    return wait_for(step, [](int) { return true; });
  }

  /// Copies chunk `i` of each share out of this rank's ring into the output. Skips owners in
  /// `direct` (a bit per rank), which have stored the chunk in the output.
  template <class DataOps>
  ORIEL_DEVICE_FN void copy_out(std::uint32_t i, std::uint64_t direct, DataOps& ops) const {
    for_each_peer([&](int owner) {
      if (((direct >> owner) & 1) != 0) return;
      const Span part = span(owner, i);
      ops.copy_out(part.first, ring(arguments_.rank, Ring::output, i, owner), part.count);
    });
  }

 private:
  ORIEL_DEVICE_FN int next(int rank) const {
    return rank + 1 < arguments_.ranks ? rank + 1 : 0;
  }

  const AllReduceArguments& arguments_;
  Places places_;
  std::uint64_t element_bytes_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t chunk_ = 0;
  std::uint32_t chunks_ = 0;
  int first_peer_ = 0;
  std::uint32_t ring_base_ = 0;   // chunks of earlier calls: position of the rings
  std::uint32_t step_base_ = 0;   // steps of earlier calls: position of the flags
  std::uint32_t handshakes_ = 0;  // streamed calls so far
};

}  // namespace oriel::kernels
