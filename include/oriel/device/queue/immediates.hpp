// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/transfers.hpp"

/// The receiving end of a queue. Each put_immediate of the peer uses up one receive that was posted
/// here, and writes one element of the receive completion queue once its bytes have landed; without
/// a receive the peer's NIC waits and asks again. The elements are filled in turn, round by round
/// of the ring, the lowest bit of each telling an odd round from an even one.
///
/// One consumer at a time: a thread of the host or of a kernel, or thread 0 of a group. Whoever
/// comes after it synchronises with it (a barrier, the end of a kernel), for it reads where the
/// other stopped. Nothing here touches the ring of sends but where a function says so.
namespace oriel::device::queue {

/// How far the consumer has come. Counted since the queue began, below 2^63; posted - taken is at
/// most the number of elements.
struct ReceivePosition {
  std::uint64_t taken = 0;   ///< immediates
  std::uint64_t posted = 0;  ///< receives
};

/// The receives of a queue as its consumer sees them. The host makes it, and what it points to
/// outlives its users; the same for all threads.
struct ReceiveView {
  const Completion* completions = nullptr;  ///< count elements, written by the NIC
  /// The first word of the doorbell record: the low 16 bits of ReceivePosition::posted, big-endian.
  /// Written here, read by the NIC.
  std::uint32_t* record = nullptr;
  ReceivePosition* position = nullptr;
  std::uint32_t count = 0;  ///< a power of two, 2 to 32768; 0: the queue receives nothing
};

/// What a peer's write with an immediate has told.
struct ReceivedImmediate {
  std::uint32_t value = 0;
  std::uint32_t bytes = 0;  ///< of the whole write
};

enum class Arrival : std::uint8_t {
  none,       ///< not yet
  immediate,  ///< it has been taken
  failed,     ///< the queue has: no more will come
};

namespace detail {

ORIEL_DEVICE_FN const Completion& receive_element(const ReceiveView& receives,
                                                  std::uint64_t taken) {
  return receives.completions[taken & (receives.count - 1)];
}

/// What the element says that comes after `taken` immediates; invalid if it is of an earlier round.
/// Acquire: what the NIC has written before it is visible.
template <class M>
ORIEL_DEVICE_FN CompletionKind arrived(const ReceiveView& receives, std::uint64_t taken) {
  const bool odd = (taken & receives.count) != 0;
  return kind_in_round(
      M::template load<Order::acquire, Scope::system>(&receive_element(receives, taken).tail), odd);
}

/// The element is one of an immediate.
template <class M>
ORIEL_DEVICE_FN ReceivedImmediate take_arrived(const ReceiveView& receives, std::uint64_t taken) {
  const Completion& element = receive_element(receives, taken);
  const ReceivedImmediate immediate{
      big_endian(M::template load<Order::relaxed, Scope::system>(&element.immediate)),
      big_endian(M::template load<Order::relaxed, Scope::system>(&element.bytes))};
  M::template store<Order::relaxed, Scope::system>(&receives.position->taken, taken + 1);
  return immediate;
}

/// The element tells of the queue's end. Keeps why, unless something is known already.
template <class M>
ORIEL_DEVICE_FN void keep_error(const QueueView& queue, const Completion& element) {
  // What has ended the sends says more than that receives were flushed.
  if (!look_at_completion<M>(queue)) return;
  std::uint64_t word = 0;
  if (queue.nic_error != nullptr) {
    word = M::template load<Order::acquire, Scope::system>(queue.nic_error);
  }
  if (word == 0) {
    const Syndromes syndromes =
        decode_syndromes(M::template load<Order::relaxed, Scope::system>(&element.status));
    word = encode_error({.syndrome = syndromes.syndrome,
                         .vendor_syndrome = syndromes.vendor,
                         .opcode = 0,
                         .index = 0});
  }
  M::template compare_swap<Order::acq_rel, Scope::device>(&queue.indexes->error, std::uint64_t{0},
                                                          word);
}

/// Until the next immediate is there and its bytes are visible; it is not taken.
template <class M>
ORIEL_DEVICE_SLOW QueueOutcome wait_for_arrival(const QueueView& queue, const ReceiveView& receives,
                                                const WaitControl& control) {
  if (receives.count == 0) return QueueOutcome::refused;
  const auto load = [](const std::uint64_t* word) {
    return M::template load<Order::relaxed, Scope::system>(word);
  };
  const std::uint64_t taken = load(&receives.position->taken);
  if (load(&receives.position->posted) == taken) return QueueOutcome::refused;
  CompletionKind kind = CompletionKind::invalid;
  const WaitOutcome waited = wait_until<M>(
      [&] {
        kind = arrived<M>(receives, taken);
        return kind != CompletionKind::invalid || is_broken<M>(queue);
      },
      control, WaitTarget{queue.peer, taken + 1});
  if (kind == CompletionKind::received_immediate) {
    return queue.gets_need_dump ? dump_and_wait<M>(queue, control) : QueueOutcome::done;
  }
  if (kind != CompletionKind::invalid) {
    keep_error<M>(queue, receive_element(receives, taken));
    return QueueOutcome::failed;
  }
  // Nobody's blocks are left open by a wait like this: the queue goes on without it.
  return waited == WaitOutcome::ready ? reason_of_end<M>(queue) : outcome_of(waited);
}

}  // namespace detail

/// Makes room for `count` more immediates. False, and nothing posted, if more than
/// ReceiveView::count would be outstanding. Local, not blocking.
/// Release: what the consumer has loaded of elements and of the peer's bytes before is not
/// overwritten by what comes into this room.
template <class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN bool post_receives(const ReceiveView& receives, std::uint32_t count) {
  if (count > receives.count) return false;
  if (count == 0) return true;
  ReceivePosition& at = *receives.position;
  const std::uint64_t posted = M::template load<Order::relaxed, Scope::system>(&at.posted) + count;
  if (posted - M::template load<Order::relaxed, Scope::system>(&at.taken) > receives.count) {
    return false;
  }
  M::template store<Order::relaxed, Scope::system>(&at.posted, posted);
  M::template store<Order::release, Scope::system>(
      receives.record, big_endian(static_cast<std::uint32_t>(posted & 0xffffu)));
  return true;
}

/// Takes the next immediate, in the order of arrival, if it has come. Local, not blocking.
/// Acquire: the bytes that came with it, and with all before it, are visible to this thread, and to
/// those that synchronise with it; where QueueView::gets_need_dump is set only after a dump entry,
/// which wait_immediate sees to.
template <class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN Arrival take_immediate(const ReceiveView& receives,
                                                     ReceivedImmediate& immediate) {
  if (receives.count == 0) return Arrival::none;
  const std::uint64_t taken =
      M::template load<Order::relaxed, Scope::system>(&receives.position->taken);
  const CompletionKind kind = detail::arrived<M>(receives, taken);
  if (kind == CompletionKind::invalid) return Arrival::none;
  if (kind != CompletionKind::received_immediate) return Arrival::failed;
  immediate = detail::take_arrived<M>(receives, taken);
  return Arrival::immediate;
}

/// Waits until the next immediate has come, and takes it. All threads of the group (Thread, Warp or
/// Cta) get it, the outcome, and the sight of its bytes; thread 0 does the work. Blocking.
/// `refused`: no receive is posted that an immediate could use. `failed`: the queue has, and
/// QueueIndexes::error says why as far as is known. `aborted`: by the abort word, or because posts
/// to this queue are refused. After `timed_out` the queue may still be used, and waited for again,
/// unless the time passed in posting a dump entry, which this does where QueueView::gets_need_dump
/// asks for it.
template <class Group, class M = Memory>
[[nodiscard]] ORIEL_DEVICE_FN QueueOutcome wait_immediate(Group group, const QueueView& queue,
                                                          const ReceiveView& receives,
                                                          ReceivedImmediate& immediate,
                                                          const WaitControl& control) {
  static_assert(!std::is_base_of_v<Lanes, Group>, "one consumer at a time");
  QueueOutcome outcome = QueueOutcome::done;
  ReceivedImmediate taken;
  if (group.rank() == 0) {
    outcome = detail::wait_for_arrival<M>(queue, receives, control);
    if (outcome == QueueOutcome::done) {
      taken = detail::take_arrived<M>(
          receives, M::template load<Order::relaxed, Scope::system>(&receives.position->taken));
    }
  }
  group.sync();
  outcome = static_cast<QueueOutcome>(group.broadcast(static_cast<std::uint64_t>(outcome)));
  const std::uint64_t both = group.broadcast(std::uint64_t{taken.bytes} << 32 | taken.value);
  if (outcome == QueueOutcome::done) {
    immediate = {static_cast<std::uint32_t>(both), static_cast<std::uint32_t>(both >> 32)};
  }
  return outcome;
}

}  // namespace oriel::device::queue
