// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/publish.hpp"
#include "oriel/device/queue/region.hpp"
#include "oriel/device/queue/transfers.hpp"

/// Atomic operations of 4 and 8 bytes on the peer's registered memory, executed by the peer's NIC.
/// They are atomic among NICs, but not with accesses of the peer's own threads to the same word.
/// T is std::uint32_t or std::uint64_t. The address is aligned to T, otherwise the call is
/// `refused`. Offsets are in bytes. All threads of a group call each function with the same
/// arguments. Every function that posts also releases, as in transfers.hpp.
///
/// Example: a thread takes the next number of a counter, the first word of `at`.
/// ```cpp
/// namespace dq = oriel::device::queue;
/// ORIEL_DEVICE_FN dq::QueueOutcome take_ticket(const dq::QueueView& queue, const dq::Region& at,
///                                              std::uint64_t& ticket,
///                                              const oriel::device::WaitControl& control) {
///   constexpr std::uint64_t kOne = 1;
///   return dq::fetch_atomic<dq::AtomicOp::add>(queue, at, 0, kOne, ticket, control);
/// }
/// ```
namespace oriel::device::queue {

/// Operation of an atomic on the word.
enum class AtomicOp : std::uint8_t {
  add,           ///< adds the operand modulo 2^32 or 2^64
  bit_and,       ///< keeps the bits that are set in the operand
  bit_or,        ///< sets the bits that are set in the operand
  bit_xor,       ///< inverts the bits that are set in the operand
  swap,          ///< also "set"
  compare_swap,  ///< replaces the word if it equals `compare`
};

namespace detail {

template <class T>
inline constexpr bool kIsAtomicWord =
    std::is_same_v<T, std::uint32_t> || std::is_same_v<T, std::uint64_t>;

/// Returns the operands of an operation that exists only as a masked compare-and-swap.
template <AtomicOp kOp, class T>
constexpr ORIEL_DEVICE_FN MaskedSwap<T> masked_swap(T operand, T compare) {
  constexpr T kAll = static_cast<T>(~T{0});
  if constexpr (kOp == AtomicOp::bit_and) {
    return {operand, 0, static_cast<T>(~operand), 0};
  } else if constexpr (kOp == AtomicOp::bit_or) {
    return {operand, 0, operand, 0};
  } else if constexpr (kOp == AtomicOp::swap) {
    return {operand, 0, kAll, 0};
  } else {
    return {operand, compare, kAll, kAll};
  }
}

template <AtomicOp kOp, class T>
constexpr ORIEL_DEVICE_FN auto atomic_wqe(Place place, std::uint32_t flags, RemoteAddress remote,
                                          T operand, T compare, LocalRange old) {
  constexpr bool kWide = sizeof(T) == 8;
  if constexpr (kOp == AtomicOp::add && kWide) {
    return fetch_add_wqe(place, flags, remote, operand, old);
  } else if constexpr (kOp == AtomicOp::add || kOp == AtomicOp::bit_xor) {
    const T boundary = kOp == AtomicOp::add ? T{0} : static_cast<T>(~T{0});
    return masked_fetch_add_wqe(place, flags, remote, operand, boundary, old);
  } else if constexpr (kOp == AtomicOp::compare_swap && kWide) {
    return compare_swap_wqe(place, flags, remote, operand, compare, old);
  } else {
    return masked_compare_swap_wqe(place, flags, remote, masked_swap<kOp>(operand, compare), old);
  }
}

/// Returns the WQEBBs of an atomic with its ending. A completion names a WQE's first WQEBB. An
/// atomic of more than one WQEBB is therefore followed by a WQE of one WQEBB, which is signalled
/// instead.
template <AtomicOp kOp, class T>
ORIEL_DEVICE_FN constexpr std::uint32_t atomic_wqebbs() {
  using Made = decltype(atomic_wqe<kOp, T>(Place{}, 0, RemoteAddress{}, T{}, T{}, LocalRange{}));
  return Made::kWqebbs == 1 ? 1 : Made::kWqebbs + 1;
}

template <AtomicOp kOp, class T, class M>
ORIEL_DEVICE_FN void write_atomic(const QueueView& queue, const Reservation& reservation,
                                  std::uint32_t offset, RemoteAddress remote, T operand, T compare,
                                  LocalRange old) {
  const Place place{queue.number, reservation.base + offset};
  constexpr std::uint32_t kWqebbs = atomic_wqebbs<kOp, T>();
  write_wqe<M>(
      queue, reservation, offset,
      atomic_wqe<kOp, T>(place, kWqebbs == 1 ? kSignalled : 0, remote, operand, compare, old));
  if constexpr (kWqebbs > 1) {
    const std::uint32_t last = kWqebbs - 1;
    write_wqe<M>(queue, reservation, offset + last,
                 nop_wqe({queue.number, place.index + last}, kSignalled));
  }
}

/// Ending of one atomic, whose old value is not used.
template <AtomicOp kOp, class T>
struct AtomicEnding {
  const Region& remote;
  std::uint64_t remote_offset;
  T operand;
  T compare = 0;

  static ORIEL_DEVICE_FN std::uint32_t wqebbs() { return atomic_wqebbs<kOp, T>(); }
  template <class M>
  ORIEL_DEVICE_FN void write(const QueueView& queue, const Reservation& to,
                             std::uint32_t offset) const {
    LocalRange old = queue.spare_word();
    old.bytes = sizeof(T);
    write_atomic<kOp, T, M>(queue, to, offset, remote.remote(remote_offset), operand, compare, old);
  }
};

template <class T>
ORIEL_DEVICE_FN bool word_is_inside(const Region& remote, std::uint64_t offset) {
  return remote.holds(offset, sizeof(T)) && (remote.address + offset) % sizeof(T) == 0;
}

}  // namespace detail

/// Applies `kOp` to the word at `remote_offset`; the old value is not returned. Thread 0 of the
/// group posts it. Not blocking unless the queue is full; completes as other WQEs do.
template <AtomicOp kOp, class Group, class T, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted atomic(Group group, const QueueView& queue,
                                            const Region& remote, std::uint64_t remote_offset,
                                            T operand, const WaitControl& control, T compare = 0) {
  static_assert(detail::kIsAtomicWord<T>);
  if (!detail::word_is_inside<T>(remote, remote_offset)) return {QueueOutcome::refused, 0};
  return detail::post_ending<Group, M>(
      group, queue, detail::AtomicEnding<kOp, T>{remote, remote_offset, operand, compare}, control);
}

/// Handle of an old value of type T that is in flight.
template <class T>
struct Fetch {
  QueueOutcome outcome = QueueOutcome::done;  ///< outcome of the posting
  std::uint64_t ticket = 0;                   ///< identifies the slot that receives the value
  std::uint64_t end = 0;                      ///< index in the queue, for wait_complete
};

namespace detail {

template <class M>
ORIEL_DEVICE_SLOW QueueOutcome wait_for_slot(const QueueView& queue, std::uint32_t slot,
                                             std::uint64_t ticket, const WaitControl& control) {
  return wait_in_queue<M>(
      queue, [&] { return load_index<M>(&queue.fetch_turns[slot]) == ticket; }, control, ticket);
}

template <AtomicOp kOp, class T, class M>
ORIEL_DEVICE_FN Fetch<T> begin_fetch_alone(const QueueView& queue, RemoteAddress remote, T operand,
                                           T compare, const WaitControl& control) {
  Fetch<T> fetch;
  // Takes the slot first: a thread that waits for a slot must not block the ring, whose WQEs free
  // slots.
  fetch.ticket = M::template fetch_add<Order::relaxed, Scope::device>(&queue.indexes->fetch_tickets,
                                                                      std::uint64_t{1});
  const auto slot = static_cast<std::uint32_t>(fetch.ticket & (queue.fetch_slots - 1));
  if (load_index<M>(&queue.fetch_turns[slot]) != fetch.ticket) {
    fetch.outcome = wait_for_slot<M>(queue, slot, fetch.ticket, control);
  }
  if (fetch.outcome != QueueOutcome::done) return fetch;

  constexpr std::uint32_t kWqebbs = atomic_wqebbs<kOp, T>();
  const std::uint32_t wqebbs = kWqebbs + (queue.gets_need_dump ? 1 : 0);
  Reservation reservation;
  fetch.outcome = reserve<Thread, M>(Thread(), queue, wqebbs, reservation, control);
  if (fetch.outcome != QueueOutcome::done) return fetch;
  write_atomic<kOp, T, M>(queue, reservation, 0, remote, operand, compare,
                          queue.slot_range(slot, sizeof(T)));
  if (queue.gets_need_dump) {
    write_wqe<M>(queue, reservation, kWqebbs,
                 dump_wqe({queue.number, reservation.base + kWqebbs}, kSignalled | kFenced,
                          queue.spare_word()));
  }
  fetch.outcome = publish<Thread, M>(Thread(), queue, reservation);
  fetch.end = reservation.end();
  // The slot is not passed on, because the NIC may still write it.
  if (fetch.outcome != QueueOutcome::done) give_up<M>(queue);
  return fetch;
}

template <class T, class M>
ORIEL_DEVICE_FN QueueOutcome end_fetch_alone(const QueueView& queue, const Fetch<T>& fetch, T& old,
                                             const WaitControl& control) {
  const QueueOutcome outcome = wait_complete<M>(queue, fetch.end, control);
  if (outcome != QueueOutcome::done) {
    give_up<M>(queue);
    return outcome;
  }
  const auto slot = static_cast<std::uint32_t>(fetch.ticket & (queue.fetch_slots - 1));
  if constexpr (sizeof(T) == 8) {
    old = M::template load<Order::relaxed, Scope::system>(&queue.fetch_values[slot]);
  } else {
    // The adapter returns a 4-byte value in big-endian form.
    old = big_endian(M::template load<Order::relaxed, Scope::system>(
        reinterpret_cast<const std::uint32_t*>(&queue.fetch_values[slot])));
  }
  M::template store<Order::release, Scope::device>(&queue.fetch_turns[slot],
                                                   fetch.ticket + queue.fetch_slots);
  return QueueOutcome::done;
}

}  // namespace detail

/// Applies `kOp` as atomic does; the old value arrives in the queue's memory. end_fetch() takes it
/// from there, and must be called for each begin_fetch() that returned `done`. Not blocking unless
/// the queue is full or the next slot for old values is taken. Slots are handed out in turn. A slot
/// is taken until end_fetch(). If a caller begins several fetches before it ends one, there must be
/// slots for all concurrent fetches. Otherwise threads may deadlock.
template <AtomicOp kOp, class Group, class T, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Fetch<T> begin_fetch(Group group, const QueueView& queue,
                                                   const Region& remote,
                                                   std::uint64_t remote_offset, T operand,
                                                   const WaitControl& control, T compare = 0) {
  static_assert(detail::kIsAtomicWord<T>);
  Fetch<T> fetch;
  if (!detail::word_is_inside<T>(remote, remote_offset)) {
    fetch.outcome = QueueOutcome::refused;
    return fetch;
  }
  group.sync();
  if (group.rank() == 0) {
    fetch = detail::begin_fetch_alone<kOp, T, M>(queue, remote.remote(remote_offset), operand,
                                                 compare, control);
  }
  fetch.outcome =
      static_cast<QueueOutcome>(group.broadcast(static_cast<std::uint64_t>(fetch.outcome)));
  fetch.ticket = group.broadcast(fetch.ticket);
  fetch.end = group.broadcast(fetch.end);
  return fetch;
}

/// Waits for the old value and returns it to all threads of the group. If begin_fetch failed,
/// returns its outcome. Blocking. The value is visible to these threads (acquire). The group that
/// began the fetch calls it once.
template <class Group, class T, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome end_fetch(Group group, const QueueView& queue,
                                                     const Fetch<T>& fetch, T& old,
                                                     const WaitControl& control) {
  QueueOutcome outcome = fetch.outcome;
  if (outcome != QueueOutcome::done) return outcome;
  T value = 0;
  if (group.rank() == 0) outcome = detail::end_fetch_alone<T, M>(queue, fetch, value, control);
  group.sync();
  outcome = static_cast<QueueOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
  value = static_cast<T>(group.broadcast(value));
  if (outcome == QueueOutcome::done) old = value;
  return outcome;
}

/// Applies `kOp` as atomic does, waits for the old value, and returns it to all threads of the
/// group. If more groups fetch at once than the queue has slots, they take turns. Blocking.
template <AtomicOp kOp, class Group, class T, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome fetch_atomic(Group group, const QueueView& queue,
                                                        const Region& remote,
                                                        std::uint64_t remote_offset, T operand,
                                                        T& old, const WaitControl& control,
                                                        T compare = 0) {
  const Fetch<T> fetch =
      begin_fetch<kOp, Group, T, M>(group, queue, remote, remote_offset, operand, control, compare);
  return end_fetch<Group, T, M>(group, queue, fetch, old, control);
}

/// Fetches as above, for one thread.
template <AtomicOp kOp, class T, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome fetch_atomic(const QueueView& queue,
                                                        const Region& remote,
                                                        std::uint64_t remote_offset, T operand,
                                                        T& old, const WaitControl& control,
                                                        T compare = 0) {
  return fetch_atomic<kOp, Thread, T, M>(Thread(), queue, remote, remote_offset, operand, old,
                                         control, compare);
}

/// Operation of a signal on the peer's 8-byte word.
enum class SignalOp : std::uint8_t { add, set };

namespace detail {
template <SignalOp kSignal>
using SignalEnding =
    AtomicEnding<kSignal == SignalOp::add ? AtomicOp::add : AtomicOp::swap, std::uint64_t>;
}  // namespace detail

/// Writes `bytes` bytes as put does, then signals in the same queue. A peer that sees the signal
/// sees the bytes. With 0 bytes it only signals. One doorbell covers the signal and the last WQEs
/// of the bytes.
template <SignalOp kSignal, class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted put_signal(Group group, const QueueView& queue,
                                                const Transfer& transfer, const Region& signals,
                                                std::uint64_t signal_offset, std::uint64_t value,
                                                const WaitControl& control) {
  if (!detail::word_is_inside<std::uint64_t>(signals, signal_offset)) {
    return {QueueOutcome::refused, 0};
  }
  return detail::post_transfer<Group, M>(
      group, queue, transfer, Opcode::write, {},
      detail::SignalEnding<kSignal>{signals, signal_offset, value}, control);
}

/// Writes `count` bytes as put_bytes does, then signals as put_signal does.
template <SignalOp kSignal, class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Posted
put_bytes_signal(Group group, const QueueView& queue, const void* from, std::uint64_t count,
                 const Region& remote, std::uint64_t remote_offset, const Region& signals,
                 std::uint64_t signal_offset, std::uint64_t value, const WaitControl& control) {
  if (!detail::fit_wqe(count, remote, remote_offset) ||
      !detail::word_is_inside<std::uint64_t>(signals, signal_offset)) {
    return {QueueOutcome::refused, 0};
  }
  group.sync();
  const detail::BytesEnding bytes = detail::bytes_ending(from, count, remote, remote_offset);
  const detail::SignalEnding<kSignal> signal{signals, signal_offset, value};
  return detail::post_ending<Group, M>(
      group, queue,
      detail::BothEndings<detail::BytesEnding, detail::SignalEnding<kSignal>>{bytes, signal},
      control);
}

}  // namespace oriel::device::queue
