// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/config.hpp"
#include "oriel/device/queue/transfers.hpp"

/// Receiving side of a queue. Each put_immediate of the peer consumes one receive that was posted
/// here. After its bytes have arrived, the NIC writes one element of the receive completion queue.
/// If no receive is posted, the peer's NIC waits and retries. The elements are filled in turn,
/// round by round of the ring. The lowest bit of an element distinguishes odd and even rounds.
///
/// One consumer at a time may call these functions: a thread of the host or of a kernel, or thread
/// 0 of a group. The next consumer synchronises with the previous one (a barrier, the end of a
/// kernel), because it reads from its position on. These functions do not access the send ring
/// unless documented.
///
/// Example: takes a message that came with an immediate. The caller has posted a receive before.
/// ```cpp
/// namespace dq = oriel::device::queue;
/// ORIEL_DEVICE_FN bool receive(const dq::QueueView& queue, const dq::ReceiveView& receives,
///                              const std::uint64_t* mailbox, std::uint64_t& message,
///                              const oriel::device::WaitControl& control) {
///   dq::ReceivedImmediate immediate;
///   const dq::QueueOutcome outcome =
///       dq::wait_immediate(oriel::device::Thread{}, queue, receives, immediate, control);
///   if (outcome != dq::QueueOutcome::done) return false;
///   message = *mailbox;                     // bytes that the peer has put
///   return dq::post_receives(receives, 1);  // from here on the peer may put others
/// }
/// ```
namespace oriel::device::queue {

/// Progress of the consumer. Counted since the queue was created, below 2^63. posted - taken is at
/// most the number of elements.
struct ReceivePosition {
  std::uint64_t taken = 0;   ///< number of immediates taken
  std::uint64_t posted = 0;  ///< number of receives posted
};

/// Receives of a queue, as their consumer sees them. The host creates the view, and its pointees
/// outlive its users; the same for all threads.
struct ReceiveView {
  const Completion* completions = nullptr;  ///< count elements, written by the NIC
  /// The first word of the doorbell record: the low 16 bits of ReceivePosition::posted, big-endian.
  /// Written here, read by the NIC.
  std::uint32_t* record = nullptr;
  ReceivePosition* position = nullptr;  ///< progress; the next consumer continues from it
  std::uint32_t count = 0;  ///< a power of two, 2 to 32768; 0: the queue receives nothing
};

/// Content of a peer's write with an immediate.
struct ReceivedImmediate {
  std::uint32_t value = 0;  ///< `immediate` of the peer's put_immediate
  std::uint32_t bytes = 0;  ///< size of the WQE with the immediate, the last one of its put
};

/// Result of take_immediate.
enum class Arrival : std::uint8_t {
  none,       ///< no immediate has arrived yet
  immediate,  ///< an immediate was taken
  failed,     ///< the queue has failed: no more immediates will arrive
};

namespace detail {

ORIEL_DEVICE_FN const Completion& receive_element(const ReceiveView& receives,
                                                  std::uint64_t taken) {
  return receives.completions[taken & (receives.count - 1)];
}

/// Returns the kind of the element after `taken` immediates, or `invalid` if the element is of an
/// earlier round. Acquire: the NIC's earlier writes are visible.
template <class M>
ORIEL_DEVICE_FN CompletionKind arrived(const ReceiveView& receives, std::uint64_t taken) {
  const bool odd = (taken & receives.count) != 0;
  return kind_in_round(
      M::template load<Order::acquire, Scope::system>(&receive_element(receives, taken).tail), odd);
}

/// Takes an immediate; the element must hold one.
template <class M>
ORIEL_DEVICE_FN ReceivedImmediate take_arrived(const ReceiveView& receives, std::uint64_t taken) {
  const Completion& element = receive_element(receives, taken);
  const ReceivedImmediate immediate{
      big_endian(M::template load<Order::relaxed, Scope::system>(&element.immediate)),
      big_endian(M::template load<Order::relaxed, Scope::system>(&element.bytes))};
  M::template store<Order::relaxed, Scope::system>(&receives.position->taken, taken + 1);
  return immediate;
}

/// Records the reason for the queue's end, unless a reason is already known. The element reports
/// the end.
template <class M>
ORIEL_DEVICE_FN void keep_error(const QueueView& queue, const Completion& element) {
  // An error of the sends is more informative than the flush of receives.
  if (!poll_completion<M>(queue)) return;
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

/// Waits until the next immediate has arrived and its bytes are visible. Does not take the
/// immediate.
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
  // This wait leaves no WQEBBs unpublished, so the queue remains usable.
  return waited == WaitOutcome::ready ? reason_of_end<M>(queue) : outcome_of(waited);
}

}  // namespace detail

/// Posts receives for `count` more immediates. Returns false, and posts nothing, if more than
/// ReceiveView::count would be outstanding. Local; not blocking. Release: later immediates
/// overwrite elements and the peer's bytes only after the consumer's earlier loads of them.
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

/// Takes the next immediate, in the order of arrival, if it has arrived. Local; not blocking.
/// Acquire: the bytes of this and of all earlier immediates are visible to this thread, and to
/// threads that synchronise with it. If QueueView::gets_need_dump is set, they are visible only
/// after a dump WQE, which wait_immediate posts.
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

/// Waits until the next immediate has arrived, and takes it. All threads of the group (Thread, Warp
/// or Cta) get the immediate and the outcome, and see its bytes (acquire); thread 0 does the work.
/// Blocking. `refused`: no receive is posted that an immediate could use. `failed`: the queue has
/// failed; QueueIndexes::error has the reason, as far as it is known. `aborted`: the abort word is
/// set, or posts to this queue are refused. `timed_out`: the queue remains usable, and the caller
/// may wait again. Exception: posting a dump WQE timed out, which happens only if
/// QueueView::gets_need_dump is set.
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
