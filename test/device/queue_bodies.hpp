// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/queue.hpp"

/// Bodies that the tests and the benchmark of queues run on CPU threads and in kernels.
namespace oriel::test {

/// Returns a word of a marked WQE: every bit depends on every argument.
ORIEL_DEVICE_FN std::uint32_t queue_word(std::uint32_t queue, std::uint64_t index,
                                         std::uint32_t word) {
  std::uint64_t x = index * 0x9e3779b97f4a7c15u + (static_cast<std::uint64_t>(queue) << 8 | word);
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9u;
  return static_cast<std::uint32_t>(x >> 32);
}

/// Returns an inline write of 28 bytes whose content depends on index and queue.
ORIEL_DEVICE_FN device::queue::Wqe<4> marked_wqe(std::uint32_t queue, std::uint64_t index) {
  namespace q = device::queue;
  std::uint32_t words[q::kInlineWords];
  for (std::uint32_t i = 0; i < q::kInlineWords; ++i) words[i] = queue_word(queue, index, i);
  return q::inline_write_wqe(
      {queue, index}, q::kSignalled, {index, queue},
      q::InlineBytes(reinterpret_cast<const unsigned char*>(words), q::kInlineBytesMost));
}

/// Publishes `count` reservations of `wqebbs` marked WQEs.
template <class Group, class M = device::Memory>
ORIEL_DEVICE_FN device::queue::QueueOutcome publish_marked(Group group,
                                                           const device::queue::QueueView& queue,
                                                           std::uint32_t count,
                                                           std::uint32_t wqebbs,
                                                           const device::WaitControl& control) {
  namespace q = device::queue;
  for (std::uint32_t i = 0; i < count; ++i) {
    q::Reservation mine;
    q::QueueOutcome outcome = q::reserve<Group, M>(group, queue, wqebbs, mine, control);
    if (outcome != q::QueueOutcome::done) return outcome;
    for (std::uint32_t j = group.rank(); j < wqebbs; j += group.size()) {
      q::write_wqe<M>(queue, mine, j, marked_wqe(queue.number, mine.base + j));
    }
    outcome = q::publish<Group, M>(group, queue, mine);
    if (outcome != q::QueueOutcome::done) return outcome;
  }
  return q::QueueOutcome::done;
}

/// Drains a queue of marked WQEs in the NIC's place. It acts on the doorbell alone, and executes
/// nothing. It checks every word of the posted WQEBBs, poisons the WQEBBs and completes them.
struct QueueDrain {
  device::queue::Wqebb* ring = nullptr;
  device::queue::Completion* completion = nullptr;
  const std::uint32_t* record = nullptr;
  const std::uint64_t* doorbell = nullptr;
  std::uint32_t depth = 0;
  std::uint32_t number = 0;
  device::Scope writer = device::Scope::system;

  std::uint64_t consumed = 0;
  std::uint64_t seen_doorbell = 0;
  std::uint32_t doorbells = 0;     ///< doorbells that announced new WQEs
  std::uint32_t wrong_wqebbs = 0;  ///< WQEBBs with content that does not match their index
  std::uint32_t wrong_doorbells = 0;

  static constexpr std::uint32_t kPoison = 0xdddddddd;

  /// Polls the doorbell once. Called by all threads of the group, each with a copy of its own. Each
  /// thread counts the wrong WQEBBs that it has read. Returns the number of WQEBBs consumed.
  template <class Group, class M = device::Memory>
  ORIEL_DEVICE_FN std::uint32_t step(Group group) {
    namespace q = device::queue;
    using device::Order;
    using device::Scope;
    std::uint64_t rung = 0;
    if (group.rank() == 0) {
      rung = writer == Scope::system ? M::template load<Order::acquire, Scope::system>(doorbell)
                                     : M::template load<Order::acquire, Scope::device>(doorbell);
    }
    rung = group.broadcast(rung);
    if (rung == seen_doorbell) return 0;
    group.sync();
    seen_doorbell = rung;
    const std::uint32_t low = (q::big_endian(static_cast<std::uint32_t>(rung)) >> 8) & 0xffffu;
    const std::uint32_t published =
        q::big_endian(M::template load<Order::relaxed, Scope::system>(record)) & 0xffffu;
    const std::uint32_t count = (low - static_cast<std::uint32_t>(consumed)) & 0xffffu;
    const bool ahead = ((published - low) & 0xffffu) >= 0x8000u;
    if (q::big_endian(static_cast<std::uint32_t>(rung >> 32)) >> 8 != number || ahead ||
        count > depth) {
      ++wrong_doorbells;
      return 0;
    }
    if (count == 0) return 0;
    ++doorbells;
    for (std::uint32_t i = group.rank(); i < count; i += group.size()) {
      wrong_wqebbs += consume(consumed + i) ? 0 : 1;
    }
    group.sync();
    consumed += count;
    if (group.rank() == 0) {
      const std::uint64_t tail =
          q::encode_tail({.kind = q::CompletionKind::request,
                          .opcode = 0,
                          .queue = number,
                          .index = static_cast<std::uint16_t>((consumed - 1) & 0xffffu)});
      if (writer == Scope::system) {
        M::template store<Order::release, Scope::system>(&completion->tail, tail);
      } else {
        M::template store<Order::release, Scope::device>(&completion->tail, tail);
      }
    }
    return count;
  }

  ORIEL_DEVICE_FN bool consume(std::uint64_t index) const {
    device::queue::Wqebb& wqebb = ring[index & (depth - 1)];
    const auto expected = marked_wqe(number, index);
    bool good = true;
    for (std::uint32_t i = 0; i < device::queue::kPartsPerWqebb; ++i) {
      for (std::uint32_t j = 0; j < 4; ++j) {
        good = good && wqebb.part[i].word[j] == expected.part[i].word[j];
      }
      wqebb.part[i] = device::Pack{{kPoison, kPoison, kPoison, kPoison}};
    }
    return good;
  }
};

}  // namespace oriel::test
