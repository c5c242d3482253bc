// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/publish.hpp"
#include "oriel/device/queue/region.hpp"

/// Moves bytes between registered memory of this rank and of the peer at a queue's other end. No
/// function waits for the NIC unless documented or the queue is full. A posted operation is
/// complete when wait_complete(queue, posted.end) returns `done`. WQEs of one queue are executed in
/// order, so a later write is not seen without the earlier writes. Every function that posts also
/// releases: the NIC sees the earlier accesses of all threads of the group.
///
/// All threads of a group call each function with the same arguments and get the same result. With
/// Lanes each lane has its own arguments and result.
///
/// Example: a warp writes bytes and then a flag. It returns when their source may be overwritten.
/// ```cpp
/// namespace dq = oriel::device::queue;
/// ORIEL_DEVICE_FN dq::QueueOutcome send(const dq::QueueView& queue, const dq::Transfer& transfer,
///                                       std::uint64_t flag_offset,
///                                       const oriel::device::WaitControl& control) {
///   const oriel::device::Warp warp{};
///   const dq::Posted posted =
///       dq::put_with_value(warp, queue, transfer, std::uint32_t{1}, flag_offset, control);
///   if (posted.outcome != dq::QueueOutcome::done) return posted.outcome;
///   return dq::wait_complete(queue, posted.end, control);
/// }
/// ```
namespace oriel::device::queue {

/// Handle of a posted operation.
struct Posted {
  QueueOutcome outcome = QueueOutcome::done;  ///< outcome of the posting
  std::uint64_t end = 0;                      ///< for wait_complete; 0 if there was nothing to do
};

namespace detail {

/// Ending without WQEs. An ending is a set of WQEs at the end of a posting, in its last
/// reservation. wqebbs() returns how many WQEBBs they take. One thread calls write(), which writes
/// them from WQEBB `offset` of the reservation on.
struct NoEnding {
  static ORIEL_DEVICE_FN std::uint32_t wqebbs() { return 0; }
  template <class M>
  static ORIEL_DEVICE_FN void write(const QueueView& /*queue*/, const Reservation& /*to*/,
                                    std::uint32_t /*offset*/) {}
};

/// Ending of reads that become visible later. Raises `gets_end` before publishing, so that any
/// thread of the group can wait for these reads.
struct ReadEnding {
  static ORIEL_DEVICE_FN std::uint32_t wqebbs() { return 0; }
  template <class M>
  static ORIEL_DEVICE_FN void write(const QueueView& queue, const Reservation& to,
                                    std::uint32_t /*offset*/) {
    if (!queue.gets_need_dump) return;
    M::template fetch_max<Order::relaxed, Scope::device>(&queue.indexes->gets_end, to.end());
  }
};

/// Ending of one dump WQE. When it is complete, the data of earlier reads are visible.
struct DumpEnding {
  static ORIEL_DEVICE_FN std::uint32_t wqebbs() { return 1; }
  template <class M>
  static ORIEL_DEVICE_FN void write(const QueueView& queue, const Reservation& to,
                                    std::uint32_t offset) {
    write_wqe<M>(
        queue, to, offset,
        dump_wqe({queue.number, to.base + offset}, kSignalled | kFenced, queue.spare_word()));
  }
};

/// Ending of one nop WQE, which starts after all earlier reads and atomics.
struct FenceEnding {
  static ORIEL_DEVICE_FN std::uint32_t wqebbs() { return 1; }
  template <class M>
  static ORIEL_DEVICE_FN void write(const QueueView& queue, const Reservation& to,
                                    std::uint32_t offset) {
    write_wqe<M>(queue, to, offset,
                 nop_wqe({queue.number, to.base + offset}, kSignalled | kFenced));
  }
};

/// Ending of inline writes: two WQEs if the bytes cross a chunk boundary of `remote`, otherwise
/// one.
struct BytesEnding {
  const unsigned char* from;
  std::uint32_t count;  ///< 1 to kInlineBytesMost
  const Region& remote;
  std::uint64_t remote_offset;

  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t first() const {
    const std::uint64_t left = remote.left_in_chunk(remote_offset);
    return left < count ? static_cast<std::uint32_t>(left) : count;
  }
  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t wqebbs() const { return first() < count ? 2 : 1; }
  template <class M>
  ORIEL_DEVICE_FN void write(const QueueView& queue, const Reservation& to,
                             std::uint32_t offset) const {
    const std::uint32_t begin = first();
    const auto flags = [&](std::uint32_t wqebb) { return wqebb + 1 == to.wqebbs ? kSignalled : 0; };
    write_wqe<M>(queue, to, offset,
                 inline_write_wqe({queue.number, to.base + offset}, flags(offset),
                                  remote.remote(remote_offset), InlineBytes(from, begin)));
    if (begin == count) return;
    write_wqe<M>(queue, to, offset + 1,
                 inline_write_wqe({queue.number, to.base + offset + 1}, flags(offset + 1),
                                  remote.remote(remote_offset + begin),
                                  InlineBytes(from + begin, count - begin)));
  }
};

/// Returns whether put_bytes can post these bytes.
ORIEL_DEVICE_FN bool fit_wqe(std::uint64_t count, const Region& remote,
                             std::uint64_t remote_offset) {
  return count != 0 && count <= kInlineBytesMost && remote.holds(remote_offset, count);
}
ORIEL_DEVICE_FN BytesEnding bytes_ending(const void* from, std::uint64_t count,
                                         const Region& remote, std::uint64_t remote_offset) {
  return {static_cast<const unsigned char*>(from), static_cast<std::uint32_t>(count), remote,
          remote_offset};
}
/// Builds an ending that writes `value`, which must outlive it.
template <class T>
ORIEL_DEVICE_FN BytesEnding value_ending(const T& value, const Region& remote,
                                         std::uint64_t remote_offset) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kInlineBytesMost);
  return {reinterpret_cast<const unsigned char*>(&value), sizeof(T), remote, remote_offset};
}

/// Two endings, one after the other.
template <class First, class Second>
struct BothEndings {
  First first;
  Second second;

  [[nodiscard]] ORIEL_DEVICE_FN std::uint32_t wqebbs() const {
    return first.wqebbs() + second.wqebbs();
  }
  template <class M>
  ORIEL_DEVICE_FN void write(const QueueView& queue, const Reservation& to,
                             std::uint32_t offset) const {
    first.template write<M>(queue, to, offset);
    second.template write<M>(queue, to, offset + first.wqebbs());
  }
};

/// Posts only an ending.
template <class Group, class M, class Ending>
ORIEL_DEVICE_FN Posted post_ending(Group group, const QueueView& queue, const Ending& ending,
                                   const WaitControl& control) {
  Reservation reservation;
  Posted posted{reserve<Group, M>(group, queue, ending.wqebbs(), reservation, control), 0};
  if (posted.outcome != QueueOutcome::done) return posted;
  if (group.rank() == 0) ending.template write<M>(queue, reservation, 0);
  posted.outcome = publish<Group, M>(group, queue, reservation);
  posted.end = reservation.end();
  return posted;
}

/// Makes the NIC's earlier writes visible; one thread. They are visible if it returns `done`.
template <class M>
ORIEL_DEVICE_FN QueueOutcome dump_and_wait(const QueueView& queue, const WaitControl& control) {
  const Posted dump = post_ending<Thread, M>(Thread(), queue, DumpEnding(), control);
  if (dump.outcome != QueueOutcome::done) return dump.outcome;
  return wait_complete<M>(queue, dump.end, control);
}

/// Optional immediate of the last piece of a transfer.
struct Immediate {
  bool has_value = false;
  std::uint32_t value = 0;
};

template <class Group, class M>
ORIEL_DEVICE_FN void write_pieces(Group group, const QueueView& queue,
                                  const Reservation& reservation, const Transfer& transfer,
                                  std::uint64_t done, std::uint32_t pieces, Opcode opcode,
                                  const Immediate& immediate) {
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const std::uint32_t bytes = transfer.piece_at(done);
    const std::uint64_t here = transfer.local_offset + done;
    const LocalRange local{transfer.local.address + here, transfer.local.key_at(here), bytes};
    done += bytes;
    if (i % group.size() != group.rank()) continue;
    const bool has_immediate = immediate.has_value && done == transfer.bytes;
    // An ending is signalled itself and so covers the piece before it.
    const bool signalled = i + 1 == reservation.wqebbs;
    write_wqe<M>(queue, reservation, i,
                 transfer_wqe(has_immediate ? Opcode::write_immediate : opcode,
                              {queue.number, reservation.base + i}, signalled ? kSignalled : 0,
                              transfer.remote.remote(transfer.remote_offset + done - bytes), local,
                              has_immediate ? immediate.value : 0));
  }
}

/// Posts all pieces, in as many reservations as needed, and the ending in the last reservation. One
/// doorbell covers the last pieces and the ending.
template <class Group, class M, class Ending>
ORIEL_DEVICE_FN Posted post_transfer(Group group, const QueueView& queue, const Transfer& transfer,
                                     Opcode opcode, const Immediate& immediate,
                                     const Ending& ending, const WaitControl& control) {
  if (!transfer.is_inside()) return {QueueOutcome::refused, 0};
  const std::uint32_t behind = ending.wqebbs();
  Posted posted;
  std::uint64_t done = 0;
  bool ended = transfer.bytes == 0 && behind == 0;
  while (!ended) {
    std::uint64_t next = done;
    std::uint32_t pieces = 0;
    while (next < transfer.bytes && pieces < kReservationMost - behind) {
      next += transfer.piece_at(next);
      ++pieces;
    }
    ended = next == transfer.bytes;
    Reservation reservation;
    posted.outcome =
        reserve<Group, M>(group, queue, pieces + (ended ? behind : 0), reservation, control);
    if (posted.outcome != QueueOutcome::done) return posted;
    write_pieces<Group, M>(group, queue, reservation, transfer, done, pieces, opcode, immediate);
    if (ended && group.rank() == 0) ending.template write<M>(queue, reservation, pieces);
    posted.outcome = publish<Group, M>(group, queue, reservation);
    if (posted.outcome != QueueOutcome::done) return posted;
    posted.end = reservation.end();
    done = next;
  }
  return posted;
}

}  // namespace detail

/// Writes `bytes` bytes from `local` to `remote`. The source may be overwritten after completion.
/// Not blocking unless the queue is full.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted put(Group group, const QueueView& queue,
                                         const Transfer& transfer, const WaitControl& control) {
  return detail::post_transfer<Group, M>(group, queue, transfer, Opcode::write, {},
                                         detail::NoEnding(), control);
}

/// Writes as put does. After all bytes have arrived, the peer gets a completion that carries
/// `immediate`. A put of 0 bytes is `refused`, because no write would carry the immediate.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted put_immediate(Group group, const QueueView& queue,
                                                   const Transfer& transfer,
                                                   std::uint32_t immediate,
                                                   const WaitControl& control) {
  if (transfer.bytes == 0) return {QueueOutcome::refused, 0};
  return detail::post_transfer<Group, M>(group, queue, transfer, Opcode::write, {true, immediate},
                                         detail::NoEnding(), control);
}

/// Reads `bytes` bytes from `remote` into `local`. The bytes are visible to this device after
/// wait_visible. Not blocking unless the queue is full.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted get(Group group, const QueueView& queue,
                                         const Transfer& transfer, const WaitControl& control) {
  return detail::post_transfer<Group, M>(group, queue, transfer, Opcode::read, {},
                                         detail::ReadEnding(), control);
}

/// Reads as get does, and waits until the bytes are visible to the group. Blocking.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome get_and_wait(Group group, const QueueView& queue,
                                                        const Transfer& transfer,
                                                        const WaitControl& control) {
  const Posted posted = queue.gets_need_dump && transfer.bytes != 0
                            ? detail::post_transfer<Group, M>(group, queue, transfer, Opcode::read,
                                                              {}, detail::DumpEnding(), control)
                            : detail::post_transfer<Group, M>(group, queue, transfer, Opcode::read,
                                                              {}, detail::NoEnding(), control);
  QueueOutcome outcome = posted.outcome;
  if (outcome == QueueOutcome::done && group.rank() == 0) {
    outcome = wait_complete<M>(queue, posted.end, control);
  }
  group.sync();
  return static_cast<QueueOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
}

/// Writes the `count` bytes at `from`, 1 to kInlineBytesMost, as inline data. Their source may be
/// reused at once. Thread 0 of the group posts them after a group.sync(). Any other count is
/// `refused`. Not blocking unless the queue is full. Uses two WQEs if the bytes cross a chunk
/// boundary of `remote`.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted put_bytes(Group group, const QueueView& queue,
                                               const void* from, std::uint64_t count,
                                               const Region& remote, std::uint64_t remote_offset,
                                               const WaitControl& control) {
  if (!detail::fit_wqe(count, remote, remote_offset)) return {QueueOutcome::refused, 0};
  group.sync();
  return detail::post_ending<Group, M>(
      group, queue, detail::bytes_ending(from, count, remote, remote_offset), control);
}

/// Writes a value as put_bytes does, without the initial group.sync().
template <class Group, class T, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted put_value(Group group, const QueueView& queue, const T& value,
                                               const Region& remote, std::uint64_t remote_offset,
                                               const WaitControl& control) {
  if (!remote.holds(remote_offset, sizeof(T))) return {QueueOutcome::refused, 0};
  return detail::post_ending<Group, M>(group, queue,
                                       detail::value_ending(value, remote, remote_offset), control);
}

/// Writes `bytes` bytes as put does, then a value to another place of the same memory. A peer that
/// sees the value sees the bytes. One doorbell covers the value and the last WQEs of the bytes.
template <class Group, class T, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted put_with_value(Group group, const QueueView& queue,
                                                    const Transfer& transfer, const T& value,
                                                    std::uint64_t value_offset,
                                                    const WaitControl& control) {
  if (!transfer.remote.holds(value_offset, sizeof(T))) return {QueueOutcome::refused, 0};
  return detail::post_transfer<Group, M>(group, queue, transfer, Opcode::write, {},
                                         detail::value_ending(value, transfer.remote, value_offset),
                                         control);
}
/// Writes `count` bytes as put_bytes does, then a value as put_with_value does. One doorbell covers
/// all WQEs.
template <class Group, class T, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted
put_bytes_with_value(Group group, const QueueView& queue, const void* from, std::uint64_t count,
                     const Region& remote, std::uint64_t remote_offset, const T& value,
                     std::uint64_t value_offset, const WaitControl& control) {
  using detail::BytesEnding;
  if (!detail::fit_wqe(count, remote, remote_offset) || !remote.holds(value_offset, sizeof(T))) {
    return {QueueOutcome::refused, 0};
  }
  group.sync();
  return detail::post_ending<Group, M>(group, queue,
                                       detail::BothEndings<BytesEnding, BytesEnding>{
                                           detail::bytes_ending(from, count, remote, remote_offset),
                                           detail::value_ending(value, remote, value_offset)},
                                       control);
}

/// Waits until everything posted before is complete and the bytes of gets are visible. Each thread
/// calls it for itself. Blocking.
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
  outcome = detail::dump_and_wait<M>(queue, control);
  if (outcome == QueueOutcome::done) {
    M::template fetch_max<Order::acq_rel, Scope::device>(&at.gets_visible, gets);
  }
  return outcome;
}

/// Lets later WQEs start only after all earlier reads and atomics; writes are in order anyway.
/// Thread 0 of the group posts it. Not blocking unless the queue is full.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted fence(Group group, const QueueView& queue,
                                           const WaitControl& control) {
  return detail::post_ending<Group, M>(group, queue, detail::FenceEnding(), control);
}

}  // namespace oriel::device::queue
