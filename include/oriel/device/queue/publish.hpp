// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/send_queue.hpp"

/// Path of a WQE to the NIC: reserve, write, publish, wait. Each publisher marks its own WQEBBs.
/// The thread that gets the lock publishes all WQEBBs that are marked without a gap, and rings the
/// doorbell once for them. Only the NIC therefore waits for a slow publisher. The idea comes from
/// BaM's submission queues for SSDs, here with marks that never repeat (docs/queues.md).
///
/// A group of threads reserves and publishes together, and its threads write. Groups are Thread,
/// Lanes, Warp and Cta. Blocking calls end by `control` as all waits do, and return the outcome to
/// every thread of the group. After any outcome but `done` the queue is unusable, and the caller
/// posts nothing more.
///
/// Example: posts a WQE that does nothing, and waits until the NIC has executed it.
/// ```cpp
/// namespace dq = oriel::device::queue;
/// ORIEL_DEVICE_FN dq::QueueOutcome run_nop(const dq::QueueView& queue,
///                                          const oriel::device::WaitControl& control) {
///   const oriel::device::Thread thread{};
///   dq::Reservation one;
///   dq::QueueOutcome outcome = dq::reserve(thread, queue, 1, one, control);
///   if (outcome != dq::QueueOutcome::done) return outcome;
///   dq::write_wqe(queue, one, 0, dq::nop_wqe({queue.number, one.base}, dq::kSignalled));
///   outcome = dq::publish(thread, queue, one);
///   if (outcome != dq::QueueOutcome::done) return outcome;
///   return dq::wait_complete(queue, one.end(), control);
/// }
/// ```
namespace oriel::device::queue {

namespace detail {

/// Polls the completion and updates `completed` and `error`. Returns false once the queue has
/// failed.
template <class M>
ORIEL_DEVICE_FN bool poll_completion(const QueueView& queue) {
  QueueIndexes& at = *queue.indexes;
  // Read before the element, so that the element is not older than `known`.
  const std::uint64_t known = load_index<M>(&at.completed);
  const CompletionTail tail =
      decode_tail(M::template load<Order::acquire, Scope::system>(&queue.completion->tail));
  if (tail.kind == CompletionKind::request) {
    const std::uint64_t now = completed_wqebbs(known, tail.index, queue.depth);
    if (now > known) M::template fetch_max<Order::acq_rel, Scope::device>(&at.completed, now);
    return true;
  }
  if (tail.kind != CompletionKind::request_error) return true;
  if (M::template load<Order::relaxed, Scope::device>(&at.error) != 0) return false;
  // The element may belong to a WQE that was flushed later; the NIC's own word has the first error.
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
  // All WQEBBs before the failed WQE are complete.
  const std::uint64_t now =
      completed_wqebbs(known, static_cast<std::uint16_t>(error.index - 1), queue.depth);
  if (error.syndrome != kFlushed && now > known) {
    M::template fetch_max<Order::acq_rel, Scope::device>(&at.completed, now);
  }
  M::template compare_swap<Order::acq_rel, Scope::device>(&at.error, std::uint64_t{0}, word);
  return false;
}

/// Polls the completion unless another thread is polling it. Reason: the completion may lie across
/// PCIe, where thousands of readers slow down each other and the writes to it.
template <class M>
ORIEL_DEVICE_FN bool poll_in_turn(const QueueView& queue) {
  QueueIndexes& at = *queue.indexes;
  if (M::template load<Order::relaxed, Scope::device>(&at.polling) != 0 ||
      M::template compare_swap<Order::acq_rel, Scope::device>(&at.polling, 0u, 1u) != 0) {
    return M::template load<Order::relaxed, Scope::device>(&at.error) == 0;
  }
  const bool good = poll_completion<M>(queue);
  M::template store<Order::release, Scope::device>(&at.polling, 0u);
  return good;
}

/// Bit of `sweep` that is set while a thread publishes.
inline constexpr std::uint64_t kSweeping = 1;
enum class More : std::uint8_t { no, yes, is_broken };

/// Ends a sweep; the caller has set kSweeping. Notifies the NIC of the WQEBBs between `from` and
/// `end`, clears kSweeping, and returns whether more WQEBBs are marked by now.
template <class Group, class M>
ORIEL_DEVICE_FN More end_sweep(Group group, const QueueView& queue, std::uint64_t from,
                               std::uint64_t end) {
  group.sync();  // orders all earlier reads and writes of the group before the doorbell
  auto more = More::no;
  if (group.rank() == 0) {
    const bool broken = is_broken<M>(queue);
    if (end != from && !broken) ring_doorbell<M>(queue, end);
    M::template exchange<Scope::device>(&queue.indexes->sweep, (broken ? from : end) << 1);
    more = broken ? More::is_broken : marked_at<M>(queue, end) != 0 ? More::yes : More::no;
  }
  return static_cast<More>(group.broadcast(static_cast<std::uint64_t>(more)));
}

/// Publishes marked WQEBBs until there are no more.
/// A thread that finds another thread sweeping may leave. Its read-modify-write of `sweep` precedes
/// the one by which the other thread ends. The other thread therefore sees its mark when it checks
/// for more. A thread whose WQEBBs follow a gap may leave too: the thread that closes the gap
/// continues. `usual`: see marked_end. Out of line, this function would cost a third of the
/// throughput of many warps (docs/queues.md).
template <class Group, class M>
ORIEL_DEVICE_FN QueueOutcome sweep_marks(Group group, const QueueView& queue, std::uint32_t usual) {
  for (;;) {
    std::uint64_t before = 0;
    if (group.rank() == 0) {
      before = M::template fetch_or<Scope::device>(&queue.indexes->sweep, kSweeping);
    }
    before = group.broadcast(before);
    if ((before & kSweeping) != 0) return QueueOutcome::done;
    group.sync();  // makes the previous sweeper's writes visible to all threads
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
        good = poll_in_turn<M>(queue);
        return complete() || !good;
      },
      control, end);
  if (waited != QueueOutcome::done) return waited;
  return complete() ? QueueOutcome::done : QueueOutcome::failed;
}

}  // namespace detail

/// Waits until all WQEBBs before `end` are complete. Blocking; each thread calls it for itself.
/// Returns `failed` if the queue fails before they are. Acquire: what the NIC has written here is
/// visible, unless QueueView::gets_need_dump is set.
template <class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome wait_complete(const QueueView& queue, std::uint64_t end,
                                                         const WaitControl& control) {
  if (detail::load_index<M>(&queue.indexes->completed) >= end) return QueueOutcome::done;
  return detail::wait_until_complete<M>(queue, end, control);
}

namespace detail {

/// Reserves WQEBBs for one thread and waits until they are free.
template <class M>
ORIEL_DEVICE_FN QueueOutcome reserve_alone(const QueueView& queue, std::uint32_t wqebbs,
                                           Reservation& reservation, const WaitControl& control) {
  QueueIndexes& at = *queue.indexes;
  // Both accesses are in flight together, so the second costs no extra time.
  const std::uint64_t sweep = M::template load<Order::relaxed, Scope::device>(&at.sweep);
  const std::uint64_t base =
      M::template fetch_add<Order::relaxed, Scope::device>(&at.reserved, std::uint64_t{wqebbs});
  reservation = {base, wqebbs, 0, sweep == base << 1};
  const std::uint64_t end = base + wqebbs;
  if (end <= queue.depth) return QueueOutcome::done;
  const QueueOutcome outcome = wait_complete<M>(queue, end - queue.depth, control);
  // A failed queue completes nothing more, so no thread closes this gap.
  if (outcome == QueueOutcome::failed) give_up<M>(queue);
  return outcome;
}

/// Reserves WQEBBs for lanes that call together.
template <class Group, class M>
ORIEL_DEVICE_FN QueueOutcome reserve_together(Group group, const QueueView& queue,
                                              std::uint32_t wqebbs, Reservation& reservation,
                                              const WaitControl& control) {
  // The key groups lanes with the same queue and number of WQEBBs. If all lanes together would need
  // too many WQEBBs, each lane reserves alone, with a key that is no number of WQEBBs. The
  // alignment of the address leaves the lower bits free.
  static_assert(alignof(QueueIndexes) >= 2 * kReservationMost);
  const bool alone = wqebbs * group.most() > kReservationMost;
  const std::uint64_t key = reinterpret_cast<std::uint64_t>(queue.indexes) |
                            (alone ? kReservationMost + group.lane() : wqebbs);
  const std::uint32_t together = group.together(key);
  const std::uint32_t before = group.before(together);
  Reservation all;
  QueueOutcome outcome = QueueOutcome::done;
  if (before == 0) {
    outcome = reserve_alone<M>(queue, wqebbs * group.count(together), all, control);
  }
  const std::uint64_t base = group.broadcast_among(together, all.base);
  reservation = {base + std::uint64_t{before} * wqebbs, wqebbs, together, all.is_next};
  return static_cast<QueueOutcome>(
      group.broadcast_among(together, static_cast<std::uint64_t>(outcome)));
}

/// Publishes WQEBBs that all threads concerned have written.
template <class Group, class M>
ORIEL_DEVICE_FN QueueOutcome hand_over(Group group, const QueueView& queue,
                                       const Reservation& reservation) {
  bool started = false;
  if (group.rank() == 0) {
    const std::uint64_t idle = reservation.base << 1;
    started = reservation.is_next && M::template compare_swap<Order::acquire, Scope::device>(
                                         &queue.indexes->sweep, idle, idle | kSweeping) == idle;
    if (!started) {
      M::template store<Order::release, Scope::device>(
          &queue.marks[reservation.base & (queue.depth - 1)],
          mark_of(reservation.base, reservation.wqebbs));
    }
  }
  started = group.broadcast(started ? 1 : 0) != 0;
  if (started) {  // these WQEBBs are next, and have no mark
    const More more = end_sweep<Group, M>(group, queue, reservation.base, reservation.end());
    if (more == More::no) return QueueOutcome::done;
    if (more == More::is_broken) return reason_of_end<M>(queue);
  }
  return sweep_marks<Group, M>(group, queue, reservation.wqebbs);
}

}  // namespace detail

/// Reserves `wqebbs` WQEBBs (1 to kReservationMost) of the ring for the group and waits until they
/// are free. All threads of the group get the same reservation and outcome. With Lanes each lane
/// gets its own reservation, writes its WQEBBs and calls publish. Lanes must not diverge between
/// reserve and publish. Blocking; orders no memory.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome reserve(Group group, const QueueView& queue,
                                                   std::uint32_t wqebbs, Reservation& reservation,
                                                   const WaitControl& control) {
  if constexpr (std::is_base_of_v<Lanes, Group>) {
    return detail::reserve_together<Group, M>(group, queue, wqebbs, reservation, control);
  } else {
    QueueOutcome outcome = QueueOutcome::done;
    if (group.rank() == 0) outcome = detail::reserve_alone<M>(queue, wqebbs, reservation, control);
    reservation = {group.broadcast(reservation.base), wqebbs, 0, reservation.is_next};
    return static_cast<QueueOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
  }
}

/// Writes a WQE into the group's WQEBBs, `offset` WQEBBs after the reservation's base. One thread;
/// several threads may write several WQEs of one reservation. Not blocking. Weak order: publish
/// releases them.
template <class M = Memory, std::uint32_t kParts>
ORIEL_DEVICE_FN void write_wqe(const QueueView& queue, const Reservation& reservation,
                               std::uint32_t offset, const Wqe<kParts>& wqe) {
  ORIEL_DEVICE_UNROLL
  for (std::uint32_t i = 0; i < kParts; ++i) {
    const std::uint64_t index = reservation.base + offset + i / kPartsPerWqebb;
    Wqebb& wqebb = queue.ring[index & (queue.depth - 1)];
    M::template store<Order::weak, Scope::system>(&wqebb.part[i % kPartsPerWqebb], wqe.part[i]);
  }
}

/// Publishes the group's WQEBBs to the NIC; all of them are written. Returns before they are
/// executed, and perhaps before the NIC is notified. In the latter case a concurrent publisher, or
/// the thread that closes an earlier gap, notifies the NIC. Not blocking; all threads of the group
/// call it. Release: the NIC sees the earlier accesses of these threads.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome publish(Group group, const QueueView& queue,
                                                   const Reservation& reservation) {
  group.sync();
  if constexpr (std::is_base_of_v<Lanes, Group>) {
    group.sync_among(reservation.lanes);
    QueueOutcome outcome = QueueOutcome::done;
    if (group.before(reservation.lanes) == 0) {
      const Reservation all{reservation.base, reservation.wqebbs * group.count(reservation.lanes),
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

/// Waits until everything that any thread had reserved at the time of the call is complete. Writes
/// have then reached the peer, and fetched values have arrived here. Blocking; each thread calls it
/// for itself. Acquires as wait_complete does.
template <class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome wait_all(const QueueView& queue,
                                                    const WaitControl& control) {
  return wait_complete<M>(
      queue, M::template load<Order::relaxed, Scope::device>(&queue.indexes->reserved), control);
}

}  // namespace oriel::device::queue
