// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/publish.hpp"
#include "oriel/device/queue/region.hpp"

/// Moving bytes between registered memory of this rank and of the peer at a queue's other end.
/// Nothing here waits for the NIC but where a function says so; what it posts is complete once
/// wait_complete(queue, posted.end) says `done`. Entries of one queue are executed in order, so a
/// write that was posted later is not seen without those before it.
/// All threads of a group call with the same arguments and get the same result; but Lanes, of
/// which each has arguments and a result of its own.
namespace oriel::device::queue {

/// What a call has posted.
struct Posted {
  QueueOutcome outcome = QueueOutcome::done;
  std::uint64_t end = 0;  ///< for wait_complete; 0 if there was nothing to do
};

namespace detail {

/// How a transfer ends: entries behind its last piece, in the same reservation.
struct Ending {
  bool dump = false;           ///< read again, so that what was read is visible
  bool has_immediate = false;  ///< the last piece tells the peer of itself
  std::uint32_t immediate = 0;
};

template <class Group, class M>
ORIEL_DEVICE_FN void write_pieces(Group group, const QueueView& queue,
                                  const Reservation& reservation, const Transfer& transfer,
                                  std::uint64_t done, std::uint32_t pieces, Opcode opcode,
                                  const Ending& ending) {
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const std::uint32_t bytes = transfer.piece_at(done);
    const std::uint64_t here = transfer.local_offset + done;
    const LocalRange local{transfer.local.address + here, transfer.local.key_at(here), bytes};
    done += bytes;
    if (i % group.size() != group.rank()) continue;
    const bool last = ending.has_immediate && done == transfer.bytes;
    // The one before a dump is waited for by that.
    const bool signalled = i + 1 == reservation.blocks;
    write_entry<M>(queue, reservation, i,
                   transfer_entry(last ? Opcode::write_immediate : opcode,
                                  {queue.number, reservation.base + i}, signalled ? kSignalled : 0,
                                  transfer.remote.remote(transfer.remote_offset + done - bytes),
                                  local, last ? ending.immediate : 0));
    if (!ending.dump || i + 2 != reservation.blocks) continue;
    write_entry<M>(queue, reservation, i + 1,
                   dump_entry({queue.number, reservation.base + i + 1}, kSignalled | kFenced,
                              queue.spare_word()));
  }
}

/// Posts all pieces, in as many reservations as they take.
template <class Group, class M>
ORIEL_DEVICE_FN Posted post_transfer(Group group, const QueueView& queue, const Transfer& transfer,
                                     Opcode opcode, const Ending& ending,
                                     const WaitControl& control) {
  if (!transfer.is_inside()) return {QueueOutcome::refused, 0};
  Posted posted;
  std::uint64_t done = 0;
  while (done < transfer.bytes) {
    std::uint64_t next = done;
    std::uint32_t pieces = 0;
    while (next < transfer.bytes && pieces < kReservationMost - 1) {
      next += transfer.piece_at(next);
      ++pieces;
    }
    const std::uint32_t blocks = pieces + (ending.dump && next == transfer.bytes ? 1 : 0);
    Reservation reservation;
    posted.outcome = reserve<Group, M>(group, queue, blocks, reservation, control);
    if (posted.outcome != QueueOutcome::done) return posted;
    Ending here = ending;
    here.dump = blocks != pieces;
    write_pieces<Group, M>(group, queue, reservation, transfer, done, pieces, opcode, here);
    posted.outcome = publish<Group, M>(group, queue, reservation, control);
    if (posted.outcome != QueueOutcome::done) return posted;
    posted.end = reservation.end();
    done = next;
  }
  return posted;
}

}  // namespace detail

/// Writes `bytes` from `local` to `remote`. The source may be written again once complete.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted put(Group group, const QueueView& queue,
                                         const Transfer& transfer, const WaitControl& control) {
  return detail::post_transfer<Group, M>(group, queue, transfer, Opcode::write, {}, control);
}

/// As put; once all of it has landed, the peer gets a completion that carries `immediate`. A put of
/// no bytes is refused, for there is nothing to send it with.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted put_immediate(Group group, const QueueView& queue,
                                                   const Transfer& transfer,
                                                   std::uint32_t immediate,
                                                   const WaitControl& control) {
  if (transfer.bytes == 0) return {QueueOutcome::refused, 0};
  return detail::post_transfer<Group, M>(group, queue, transfer, Opcode::write,
                                         {.has_immediate = true, .immediate = immediate}, control);
}

/// Reads `bytes` from `remote` into `local`. Visible to this device once complete if it is waited
/// for with wait_visible.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted get(Group group, const QueueView& queue,
                                         const Transfer& transfer, const WaitControl& control) {
  const Posted posted =
      detail::post_transfer<Group, M>(group, queue, transfer, Opcode::read, {}, control);
  if (queue.gets_need_dump && posted.end != 0 && group.rank() == 0) {
    M::template fetch_max<Order::relaxed, Scope::device>(&queue.indexes->gets_end, posted.end);
  }
  return posted;
}

/// As get, and waits until what was read is visible to the group.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome get_and_wait(Group group, const QueueView& queue,
                                                        const Transfer& transfer,
                                                        const WaitControl& control) {
  const Posted posted = detail::post_transfer<Group, M>(group, queue, transfer, Opcode::read,
                                                        {.dump = queue.gets_need_dump}, control);
  QueueOutcome outcome = posted.outcome;
  if (outcome == QueueOutcome::done && group.rank() == 0) {
    outcome = wait_complete<M>(queue, posted.end, control);
  }
  group.sync();
  return static_cast<QueueOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
}

/// Writes a value of 1 to 28 bytes that stands in the entry itself: its source is free at once. By
/// the group's thread 0. Two entries where it lies across two chunks of `remote`.
template <class Group, class T, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted put_value(Group group, const QueueView& queue, const T& value,
                                               const Region& remote, std::uint64_t remote_offset,
                                               const WaitControl& control) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kInlineBytesMost);
  if (!remote.holds(remote_offset, sizeof(T))) return {QueueOutcome::refused, 0};
  const std::uint64_t room = remote.left_in_chunk(remote_offset);
  const std::uint32_t first = room < sizeof(T) ? static_cast<std::uint32_t>(room) : sizeof(T);
  Reservation reservation;
  Posted posted{reserve<Group, M>(group, queue, first < sizeof(T) ? 2 : 1, reservation, control),
                0};
  if (posted.outcome != QueueOutcome::done) return posted;
  if (group.rank() == 0) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&value);
    const Place place{queue.number, reservation.base};
    const Place behind{queue.number, reservation.base + 1};
    const auto flags = [&](std::uint32_t block) {
      return block + 1 == reservation.blocks ? kSignalled : 0;
    };
    write_entry<M>(queue, reservation, 0,
                   inline_write_entry(place, flags(0), remote.remote(remote_offset),
                                      InlineBytes(bytes, first)));
    if (first < sizeof(T)) {
      write_entry<M>(queue, reservation, 1,
                     inline_write_entry(behind, flags(1), remote.remote(remote_offset + first),
                                        InlineBytes(bytes + first, sizeof(T) - first)));
    }
  }
  posted.outcome = publish<Group, M>(group, queue, reservation, control);
  posted.end = reservation.end();
  return posted;
}

/// Waits until everything that was posted before is complete and what gets have read is visible.
/// Called by each thread for itself.
template <class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome wait_visible(const QueueView& queue,
                                                        const WaitControl& control) {
  QueueIndexes& at = *queue.indexes;
  const std::uint64_t gets = detail::load_index<M>(&at.gets_end);
  QueueOutcome outcome = wait_all<M>(queue, control);
  if (outcome != QueueOutcome::done || !queue.gets_need_dump ||
      detail::load_index<M>(&at.gets_visible) >= gets) {
    return outcome;
  }
  Reservation reservation;
  outcome = reserve<Thread, M>(Thread(), queue, 1, reservation, control);
  if (outcome != QueueOutcome::done) return outcome;
  write_entry<M>(
      queue, reservation, 0,
      dump_entry({queue.number, reservation.base}, kSignalled | kFenced, queue.spare_word()));
  outcome = publish<Thread, M>(Thread(), queue, reservation, control);
  if (outcome == QueueOutcome::done) {
    outcome = wait_complete<M>(queue, reservation.end(), control);
  }
  if (outcome == QueueOutcome::done) {
    M::template fetch_max<Order::acq_rel, Scope::device>(&at.gets_visible, gets);
  }
  return outcome;
}

/// Has entries that are posted later begin after all reads and atomics that were posted before;
/// writes are in order anyway. By the group's thread 0.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted fence(Group group, const QueueView& queue,
                                           const WaitControl& control) {
  Reservation reservation;
  Posted posted{reserve<Group, M>(group, queue, 1, reservation, control), 0};
  if (posted.outcome != QueueOutcome::done) return posted;
  if (group.rank() == 0) {
    write_entry<M>(queue, reservation, 0,
                   nop_entry({queue.number, reservation.base}, kSignalled | kFenced));
  }
  posted.outcome = publish<Group, M>(group, queue, reservation, control);
  posted.end = reservation.end();
  return posted;
}

}  // namespace oriel::device::queue
