// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/send_queue.hpp"

/// The way of an entry to the NIC: reserve, write, publish, wait. Each publisher marks its own
/// blocks. Whoever gets the lock hands over all blocks that are marked without a gap and rings once
/// for them, so nobody waits for a slower publisher but the NIC. The idea is that of BaM's
/// submission queues for SSDs, with marks that never repeat (docs/queues.md).
///
/// A group of threads reserves and publishes together and its threads write; groups are Thread,
/// Lanes, Warp and Cta. Blocking calls end by `control` as all waits do, and say so to every thread
/// of the group. After any other outcome than `done` the caller posts nothing more: its queue is
/// not usable any more.
namespace oriel::device::queue {

namespace detail {

/// Looks at the completion and moves `completed` and `error`. False once the queue has failed.
template <class M>
ORIEL_DEVICE_FN bool look_at_completion(const QueueView& queue) {
  QueueIndexes& at = *queue.indexes;
  // Before the element is read, so that it is not older than this.
  const std::uint64_t known = load_index<M>(&at.completed);
  const CompletionTail tail =
      decode_tail(M::template load<Order::acquire, Scope::system>(&queue.completion->tail));
  if (tail.kind == CompletionKind::request) {
    const std::uint64_t now = completed_blocks(known, tail.index, queue.depth);
    if (now > known) M::template fetch_max<Order::acq_rel, Scope::device>(&at.completed, now);
    return true;
  }
  if (tail.kind != CompletionKind::request_error) return true;
  if (M::template load<Order::relaxed, Scope::device>(&at.error) != 0) return false;
  // The element may be that of an entry flushed later; the NIC's own word knows better.
  std::uint64_t word = 0;
  if (queue.nic_error != nullptr) {
    word = M::template load<Order::acquire, Scope::system>(queue.nic_error);
  }
  if (word == 0) {
    const Syndromes syndromes = decode_syndromes(
        M::template load<Order::relaxed, Scope::system>(&queue.completion->status));
    word = encode_error({.syndrome = syndromes.syndrome,
                         .vendor_syndrome = syndromes.vendor,
                         .opcode = tail.opcode,
                         .index = tail.index});
  }
  const QueueError error = decode_error(word);
  // All before the entry that failed are complete.
  const std::uint64_t now =
      completed_blocks(known, static_cast<std::uint16_t>(error.index - 1), queue.depth);
  if (error.syndrome != kFlushed && now > known) {
    M::template fetch_max<Order::acq_rel, Scope::device>(&at.completed, now);
  }
  M::template compare_swap<Order::acq_rel, Scope::device>(&at.error, std::uint64_t{0}, word);
  return false;
}

/// The same, unless another thread is at it: the completion may lie across PCIe, where thousands of
/// readers stand in the way of each other and of what is written there.
template <class M>
ORIEL_DEVICE_FN bool look_in_turn(const QueueView& queue) {
  QueueIndexes& at = *queue.indexes;
  if (M::template load<Order::relaxed, Scope::device>(&at.looking) != 0 ||
      M::template compare_swap<Order::acq_rel, Scope::device>(&at.looking, 0u, 1u) != 0) {
    return M::template load<Order::relaxed, Scope::device>(&at.error) == 0;
  }
  const bool good = look_at_completion<M>(queue);
  M::template store<Order::release, Scope::device>(&at.looking, 0u);
  return good;
}

/// Odd while somebody hands over.
inline constexpr std::uint64_t kSweeping = 1;
enum class More : std::uint8_t { no, yes, is_broken };

/// Whoever has set kSweeping tells the NIC of what lies between `from` and `end`, takes kSweeping
/// back, and says whether there is more by now.
template <class Group, class M>
ORIEL_DEVICE_FN More end_sweep(Group group, const QueueView& queue, std::uint64_t from,
                               std::uint64_t end) {
  group.sync();  // what all have read and written comes before the doorbell
  auto more = More::no;
  if (group.rank() == 0) {
    const bool broken = is_broken<M>(queue);
    if (end != from && !broken) ring_doorbell<M>(queue, end);
    M::template exchange<Scope::device>(&queue.indexes->sweep, (broken ? from : end) << 1);
    more = broken ? More::is_broken : marked_at<M>(queue, end) != 0 ? More::yes : More::no;
  }
  return static_cast<More>(group.broadcast(static_cast<std::uint64_t>(more)));
}

/// Hands over what is marked for as long as there is more. One who finds another at it may leave:
/// its read-modify-write of `sweep` comes before the one by which that other ends, which hence sees
/// its mark when it looks for more. One whose blocks come after a gap may leave too: whoever closes
/// it goes on. `usual`: see marked_end. Out of line it would take a third of the throughput that
/// many warps have (docs/queues.md).
template <class Group, class M>
ORIEL_DEVICE_FN QueueOutcome sweep_marks(Group group, const QueueView& queue, std::uint32_t usual) {
  for (;;) {
    std::uint64_t before = 0;
    if (group.rank() == 0) {
      before = M::template fetch_or<Scope::device>(&queue.indexes->sweep, kSweeping);
    }
    before = group.broadcast(before);
    if ((before & kSweeping) != 0) return QueueOutcome::done;
    group.sync();  // what the last sweeper knew, for all threads
    const std::uint64_t from = before >> 1;
    const std::uint64_t end = marked_end<M>(group, queue, from, usual);
    const More more = end_sweep<Group, M>(group, queue, from, end);
    if (more == More::no) return QueueOutcome::done;
    if (more == More::is_broken) return reason_of_end<M>(queue);
  }
}

}  // namespace detail

namespace detail {

template <class M>
ORIEL_DEVICE_SLOW QueueOutcome wait_until_complete(const QueueView& queue, std::uint64_t end,
                                                   const WaitControl& control) {
  bool good = true;
  const auto complete = [&] { return load_index<M>(&queue.indexes->completed) >= end; };
  const QueueOutcome waited = wait_in_queue<M>(
      queue,
      [&] {
        if (complete()) return true;
        good = look_in_turn<M>(queue);
        return complete() || !good;
      },
      control, end);
  if (waited != QueueOutcome::done) return waited;
  return complete() ? QueueOutcome::done : QueueOutcome::failed;
}

}  // namespace detail

/// Waits until everything before `end` is complete. Called by each thread for itself. `failed` if
/// the queue failed before it was.
template <class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome wait_complete(const QueueView& queue, std::uint64_t end,
                                                         const WaitControl& control) {
  if (detail::load_index<M>(&queue.indexes->completed) >= end) return QueueOutcome::done;
  return detail::wait_until_complete<M>(queue, end, control);
}

namespace detail {

/// One thread's: takes blocks and waits until they are free.
template <class M>
ORIEL_DEVICE_FN QueueOutcome reserve_alone(const QueueView& queue, std::uint32_t blocks,
                                           Reservation& reservation, const WaitControl& control) {
  QueueIndexes& at = *queue.indexes;
  // Both are on their way at once, so the second costs no time of its own.
  const std::uint64_t sweep = M::template load<Order::relaxed, Scope::device>(&at.sweep);
  const std::uint64_t base =
      M::template fetch_add<Order::relaxed, Scope::device>(&at.reserved, std::uint64_t{blocks});
  reservation = {base, blocks, 0, sweep == base << 1};
  const std::uint64_t end = base + blocks;
  if (end <= queue.depth) return QueueOutcome::done;
  const QueueOutcome outcome = wait_complete<M>(queue, end - queue.depth, control);
  // A queue that has failed completes no more, so this gap will not be closed.
  if (outcome == QueueOutcome::failed) give_up<M>(queue);
  return outcome;
}

/// The same for lanes that come together.
template <class Group, class M>
ORIEL_DEVICE_FN QueueOutcome reserve_together(Group group, const QueueView& queue,
                                              std::uint32_t blocks, Reservation& reservation,
                                              const WaitControl& control) {
  // Those with the same queue and number of blocks. Where all of them would take too much, each
  // goes alone, by a number that stands for no blocks. The address leaves the lower bits free.
  static_assert(alignof(QueueIndexes) >= 2 * kReservationMost);
  const bool alone = blocks * group.most() > kReservationMost;
  const std::uint64_t key = reinterpret_cast<std::uint64_t>(queue.indexes) |
                            (alone ? kReservationMost + group.lane() : blocks);
  const std::uint32_t together = group.together(key);
  const std::uint32_t before = group.before(together);
  Reservation all;
  QueueOutcome outcome = QueueOutcome::done;
  if (before == 0) {
    outcome = reserve_alone<M>(queue, blocks * group.count(together), all, control);
  }
  const std::uint64_t base = group.broadcast_among(together, all.base);
  reservation = {base + std::uint64_t{before} * blocks, blocks, together, all.is_next};
  return static_cast<QueueOutcome>(
      group.broadcast_among(together, static_cast<std::uint64_t>(outcome)));
}

/// Group or Thread hands over blocks that all threads concerned have written.
template <class Group, class M>
ORIEL_DEVICE_FN QueueOutcome hand_over(Group group, const QueueView& queue,
                                       const Reservation& reservation) {
  bool begun = false;
  if (group.rank() == 0) {
    const std::uint64_t idle = reservation.base << 1;
    begun = reservation.is_next && M::template compare_swap<Order::acquire, Scope::device>(
                                       &queue.indexes->sweep, idle, idle | kSweeping) == idle;
    if (!begun) {
      M::template store<Order::release, Scope::device>(
          &queue.marks[reservation.base & (queue.depth - 1)],
          mark_of(reservation.base, reservation.blocks));
    }
  }
  begun = group.broadcast(begun ? 1 : 0) != 0;
  if (begun) {  // these blocks are next, and have no mark
    const More more = end_sweep<Group, M>(group, queue, reservation.base, reservation.end());
    if (more == More::no) return QueueOutcome::done;
    if (more == More::is_broken) return reason_of_end<M>(queue);
  }
  return sweep_marks<Group, M>(group, queue, reservation.blocks);
}

}  // namespace detail

/// Takes `blocks` (1 to kReservationMost) of the ring for the group and waits until they are free.
/// All threads of the group get the same reservation and outcome. Lanes each get one of their own;
/// each of them then writes its blocks and calls publish, without a branch between that only some
/// of them take. Blocking.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome reserve(Group group, const QueueView& queue,
                                                   std::uint32_t blocks, Reservation& reservation,
                                                   const WaitControl& control) {
  if constexpr (std::is_base_of_v<Lanes, Group>) {
    return detail::reserve_together<Group, M>(group, queue, blocks, reservation, control);
  } else {
    QueueOutcome outcome = QueueOutcome::done;
    if (group.rank() == 0) outcome = detail::reserve_alone<M>(queue, blocks, reservation, control);
    reservation = {group.broadcast(reservation.base), blocks, 0, reservation.is_next};
    return static_cast<QueueOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
  }
}

/// Writes an entry into the group's blocks, `offset` blocks behind its reservation's base. One
/// thread; several threads may write several entries of one reservation.
template <class M = Memory, std::uint32_t kParts>
ORIEL_DEVICE_FN void write_entry(const QueueView& queue, const Reservation& reservation,
                                 std::uint32_t offset, const Entry<kParts>& entry) {
  ORIEL_DEVICE_UNROLL
  for (std::uint32_t i = 0; i < kParts; ++i) {
    const std::uint64_t index = reservation.base + offset + i / kPartsPerBlock;
    Block& block = queue.ring[index & (queue.depth - 1)];
    M::template store<Order::weak, Scope::system>(&block.part[i % kPartsPerBlock], entry.part[i]);
  }
}

/// Hands the group's blocks to the NIC, all of which are written. Returns before they are executed,
/// and perhaps before the NIC has been told of them: whoever publishes at the same time, or closes
/// a gap before them, tells it.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome publish(Group group, const QueueView& queue,
                                                   const Reservation& reservation) {
  group.sync();
  if constexpr (std::is_base_of_v<Lanes, Group>) {
    group.sync_among(reservation.lanes);
    QueueOutcome outcome = QueueOutcome::done;
    if (group.before(reservation.lanes) == 0) {
      const Reservation all{reservation.base, reservation.blocks * group.count(reservation.lanes),
                            0, reservation.is_next};
      outcome = detail::hand_over<Thread, M>(Thread(), queue, all);
    }
    return static_cast<QueueOutcome>(
        group.broadcast_among(reservation.lanes, static_cast<std::uint64_t>(outcome)));
  } else if constexpr (std::is_base_of_v<Cta, Group>) {
    QueueOutcome outcome = QueueOutcome::done;
    if (group.rank() == 0) {
      outcome = detail::hand_over<Thread, M>(Thread(), queue, reservation);
    }
    return static_cast<QueueOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
  } else {
    return detail::hand_over<Group, M>(group, queue, reservation);
  }
}

/// Waits until everything that any thread had reserved when this was called is complete: writes
/// have landed at the peer, fetched values here. Called by each thread for itself.
template <class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome wait_all(const QueueView& queue,
                                                    const WaitControl& control) {
  return wait_complete<M>(
      queue, M::template load<Order::relaxed, Scope::device>(&queue.indexes->reserved), control);
}

}  // namespace oriel::device::queue
