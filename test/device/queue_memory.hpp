// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "oriel/device/queue.hpp"

#include "device/queue_bodies.hpp"

namespace oriel::test {

/// A queue in memory of this process, as it is when `base` blocks have been posted and completed.
struct QueueMemory {
  std::vector<device::queue::Block> ring;
  std::array<std::uint32_t, 2> record{};
  std::uint64_t doorbell = 0;
  device::queue::Completion completion{};
  std::uint64_t nic_error = 0;
  device::queue::QueueIndexes indexes;
  std::vector<std::uint64_t> marks;
  std::vector<std::uint64_t> fetch_values, fetch_turns;
  device::queue::QueueView view;

  explicit QueueMemory(std::uint32_t depth, std::uint64_t base = 0, std::uint32_t fetch_slots = 16)
      : ring(depth), marks(depth), fetch_values(fetch_slots + 1), fetch_turns(fetch_slots) {
    indexes.begin_at(base);
    completion.tail =
        device::queue::encode_tail({.kind = device::queue::CompletionKind::invalid,
                                    .opcode = 0xff,
                                    .queue = 0xffffff,
                                    .index = static_cast<std::uint16_t>((base - 1) & 0xffffu)});
    for (std::uint32_t i = 0; i < fetch_slots; ++i) fetch_turns[i] = i;
    view.ring = ring.data();
    view.depth = depth;
    view.number = 0x1234;
    view.peer = 7;
    view.doorbell_record = &record[1];
    view.doorbell = &doorbell;
    view.completion = &completion;
    view.nic_error = &nic_error;
    view.indexes = &indexes;
    view.marks = marks.data();
    view.fetch_values = fetch_values.data();
    view.fetch_turns = fetch_turns.data();
    view.fetch_slots = fetch_slots;
  }
  QueueMemory(const QueueMemory&) = delete;
  QueueMemory& operator=(const QueueMemory&) = delete;

  /// How far the NIC has been told.
  std::uint64_t rung() const { return indexes.sweep >> 1; }

  QueueDrain drain() {
    QueueDrain made;
    made.ring = ring.data();
    made.completion = &completion;
    made.record = &record[1];
    made.doorbell = &doorbell;
    made.depth = view.depth;
    made.number = view.number;
    made.consumed = indexes.completed;
    return made;
  }
};

}  // namespace oriel::test
