// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <stop_token>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "oriel/device/queue.hpp"

#include "device/queue_bodies.hpp"

namespace oriel::test {

/// Queue in memory of this process, in the state after `base` WQEBBs have been posted and
/// completed.
struct QueueMemory {
  std::vector<device::queue::Wqebb> ring;
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
    show(device::queue::CompletionKind::invalid, base - 1);
    std::iota(fetch_turns.begin(), fetch_turns.end(), 0u);
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

  /// Returns the index up to which the doorbell has been rung.
  std::uint64_t rung() const { return indexes.sweep >> 1; }
  /// Stores a completion for the WQE at this index, as the NIC does.
  void show(device::queue::CompletionKind kind, std::uint64_t index, std::uint8_t opcode = 0) {
    device::Memory::store<device::Order::release>(
        &completion.tail,
        device::queue::encode_tail({.kind = kind,
                                    .opcode = opcode,
                                    .queue = view.number,
                                    .index = static_cast<std::uint16_t>(index & 0xffffu)}));
  }
  device::queue::QueueOutcome publish(std::uint32_t count, std::uint32_t wqebbs,
                                      const device::WaitControl& control = {}) {
    return publish_marked(device::Thread(), view, count, wqebbs, control);
  }
  /// Writes marked WQEs without publishing them.
  device::queue::Reservation write(std::uint32_t wqebbs) {
    device::queue::Reservation made;
    REQUIRE(device::queue::reserve(device::Thread(), view, wqebbs, made, {}) ==
            device::queue::QueueOutcome::done);
    for (std::uint32_t i = 0; i < wqebbs; ++i) {
      device::queue::write_wqe(view, made, i, marked_wqe(view.number, made.base + i));
    }
    return made;
  }
  device::queue::QueueOutcome publish(device::queue::Reservation& written) {
    return device::queue::publish(device::Thread(), view, written);
  }
  device::queue::QueueOutcome wait(std::uint64_t end) {
    return device::queue::wait_complete(view, end, {});
  }

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

/// Drains a queue on a thread of its own until it is stopped.
class DrainThread {
 public:
  explicit DrainThread(QueueMemory& memory)
      : drain_(memory.drain()), thread_([this](const std::stop_token& stop) {
          while (!stop.stop_requested()) {
            if (drain_.step(device::Thread()) == 0) std::this_thread::yield();
          }
          while (drain_.step(device::Thread()) != 0) {
          }
        }) {}
  /// Stops the drain and CHECKs that everything up to `end`, and only that, was drained without
  /// errors.
  void stop_at(std::uint64_t end) {
    thread_.request_stop();
    thread_.join();
    CHECK(drain_.consumed == end);
    CHECK(drain_.wrong_wqebbs == 0);
    CHECK(drain_.wrong_doorbells == 0);
  }
  std::uint32_t doorbells() const { return drain_.doorbells; }

 private:
  QueueDrain drain_;
  std::jthread thread_;
};

}  // namespace oriel::test
