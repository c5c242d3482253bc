// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/queue/completion.hpp"
#include "oriel/device/queue/wqe.hpp"
#include "oriel/device/wait.hpp"

/// Send queue that device code fills: reserve WQEBBs of the ring, write WQEs into them, publish
/// them to the NIC, and wait for completion. Any number of threads may use one queue at the same
/// time. The functions here but begin_at() only compute: any thread may call them, they do not
/// block and access no memory but their arguments.
///
/// All indexes count WQEBBs since the queue was created, and are "one past the
/// last". They stay below 2^63, which no queue ever reaches; the NIC receives the low 16 bits.
/// Invariant: completed <= sweep / 2 <= reserved. At most `depth` WQEBBs are in use, counted from
/// `completed` up to the last WQEBB that any thread writes.
///
/// Example: returns the reason for which a queue has failed, after an outcome `failed`.
/// ```cpp
/// namespace dq = oriel::device::queue;
/// ORIEL_DEVICE_FN dq::QueueError error_of(const dq::QueueView& queue) {
///   using namespace oriel::device;
///   return dq::decode_error(Memory::load<Order::relaxed, Scope::device>(&queue.indexes->error));
/// }
/// ```
namespace oriel::device::queue {

/// Words that producers share, in their device's memory. Initially zero, except as begin_at() sets
/// them. Contended words each have a separate cache line of 128 bytes.
struct alignas(128) QueueIndexes {
  /// Sets the state in which all WQEBBs before `base` have been posted and completed. One thread
  /// calls it before all other use. Not blocking; weak order.
  ORIEL_DEVICE_FN void begin_at(std::uint64_t base) {
    reserved = completed = base;
    sweep = base << 1;
  }

  std::uint64_t reserved = 0;  ///< index up to which WQEBBs are reserved
  /// Twice the index up to which the NIC has been notified, plus one while a thread sweeps.
  alignas(128) std::uint64_t sweep = 0;
  alignas(128) std::uint64_t completed = 0;  ///< index up to which WQEBBs are known to be complete
  /// The first error that a completion has reported (QueueError). Later errors are its
  /// consequences.
  std::uint64_t error = 0;
  /// Nonzero once a thread has given up, or the host refuses posts. Nothing more is published, as a
  /// thread that has given up may leave a gap that no thread closes.
  std::uint32_t broken = 0;
  std::uint32_t polling = 0;                     ///< nonzero: a thread is in poll_in_turn()
  alignas(128) std::uint64_t fetch_tickets = 0;  ///< number of result slots handed out
  alignas(128) std::uint64_t gets_end = 0;       ///< one past the last get
  std::uint64_t gets_visible = 0;                ///< index up to which gets are known to be visible
};

/// View of a queue in kernels. The host creates it, and its pointees outlive its users. Fits into
/// constant or global memory; the same for all threads.
struct QueueView {
  Wqebb* ring = nullptr;     ///< depth WQEBBs
  std::uint32_t depth = 0;   ///< a power of two, 128 to 32768
  std::uint32_t number = 0;  ///< the NIC's queue number, 24 bits
  std::int32_t peer = -1;    ///< world rank at the other end, for errors and stall records
  /// Scope of the ring's reader: another thread of this device, or a CPU or NIC.
  Scope reader = Scope::system;
  /// If true, the result of a read is visible only after a dump WQE, not with its completion.
  bool gets_need_dump = false;

  /// The second word of the doorbell record: how far this queue is filled. Null if the doorbell
  /// alone is enough for the NIC, which saves a fence.
  std::uint32_t* doorbell_record = nullptr;
  std::uint64_t* doorbell = nullptr;       ///< doorbell register of the NIC
  const Completion* completion = nullptr;  ///< the collapsed completion, written by the NIC
  /// The word in which the NIC keeps the first error (QueueError). The collapsed completion may
  /// already hold the error of a WQE that was flushed later. Null if the NIC has no such word.
  const std::uint64_t* nic_error = nullptr;
  QueueIndexes* indexes = nullptr;  ///< words that the producers share
  std::uint64_t* marks = nullptr;   ///< depth words, initially zero

  /// Destination of old values of atomics: fetch_slots words, and one for unused values.
  std::uint64_t* fetch_values = nullptr;
  std::uint64_t* fetch_turns = nullptr;  ///< for each slot, the ticket that may use it next
  std::uint32_t fetch_slots = 0;         ///< a power of two
  std::uint32_t fetch_lkey = 0;          ///< lkey of fetch_values

  /// Returns the word after the slots, for unused old values and for dumps. An mlx5 adapter's queue
  /// of a GPU has it in the GPU's memory. A software NIC's queue has it in host memory.
  [[nodiscard]] ORIEL_DEVICE_FN LocalRange spare_word() const { return slot_range(fetch_slots, 8); }
  /// Returns the first `bytes` bytes of a slot for old values. The slot is not checked.
  [[nodiscard]] ORIEL_DEVICE_FN LocalRange slot_range(std::uint32_t slot,
                                                      std::uint32_t bytes) const {
    return {reinterpret_cast<std::uint64_t>(fetch_values + slot), fetch_lkey, bytes};
  }
};

/// Maximum number of WQEBBs of one reservation: half of the least depth.
inline constexpr std::uint32_t kReservationMost = 64;
inline constexpr std::uint32_t kDepthLeast = 128;   ///< least QueueView::depth
inline constexpr std::uint32_t kDepthMost = 32768;  ///< greatest QueueView::depth

/// Outcome of an operation on a queue.
enum class QueueOutcome : std::uint32_t {
  done = 0,       ///< posted, or complete after a wait
  aborted = 1,    ///< the communicator's abort word was set, or another thread gave up
  timed_out = 2,  ///< WaitControl::timeout_ns passed
  failed = 3,     ///< the NIC reported an error: QueueIndexes::error
  refused = 4,    ///< bad range, size or alignment, or no receive posted; nothing was posted
};

/// Returns the outcome of a wait as that of an operation; `ready` becomes `done`.
constexpr ORIEL_DEVICE_FN QueueOutcome outcome_of(WaitOutcome outcome) {
  return static_cast<QueueOutcome>(outcome);
}

/// WQEBBs that one group owns, from `base` on.
struct Reservation {
  std::uint64_t base = 0;    ///< index of the first WQEBB
  std::uint32_t wqebbs = 0;  ///< number of WQEBBs
  std::uint32_t lanes = 0;   ///< for Lanes: mask of the lanes that have reserved together
  /// For the thread that reserved: true if the NIC had been notified of all earlier WQEBBs.
  bool is_next = false;
  /// Returns one past the last WQEBB, for wait_complete.
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t end() const { return base + wqebbs; }
};

namespace detail {

inline constexpr std::uint32_t kMarkShift = 8;  ///< bits of a mark that hold the number of WQEBBs
/// Returns the value of marks[base % depth] after all WQEBBs of the reservation are written. There
/// is one mark per reservation, so one load shows whether there is something to publish. The marks
/// of its other WQEBBs stay unchanged. The value differs from that of any other reservation until
/// 2^56 WQEBBs have passed.
constexpr ORIEL_DEVICE_FN std::uint64_t mark_of(std::uint64_t base, std::uint32_t wqebbs) {
  return base << kMarkShift | wqebbs;
}
/// Returns the number of WQEBBs of the reservation at `base` if `mark` is its mark, otherwise 0.
constexpr ORIEL_DEVICE_FN std::uint32_t marked_wqebbs(std::uint64_t mark, std::uint64_t base) {
  constexpr std::uint64_t kLow = (1u << kMarkShift) - 1;
  return (mark & ~kLow) == base << kMarkShift ? static_cast<std::uint32_t>(mark & kLow) : 0;
}

template <class M>
ORIEL_DEVICE_FN std::uint64_t load_index(const std::uint64_t* index) {
  return M::template load<Order::acquire, Scope::device>(index);
}

template <class M>
ORIEL_DEVICE_FN bool is_broken(const QueueView& queue) {
  return M::template load<Order::relaxed, Scope::device>(&queue.indexes->broken) != 0;
}

template <class M>
ORIEL_DEVICE_FN void give_up(const QueueView& queue) {
  M::template store<Order::relaxed, Scope::device>(&queue.indexes->broken, 1u);
}

/// Returns why a queue is broken, for all threads but the thread that gave up.
template <class M>
ORIEL_DEVICE_FN QueueOutcome reason_of_end(const QueueView& queue) {
  const bool failed = M::template load<Order::relaxed, Scope::device>(&queue.indexes->error) != 0;
  return failed ? QueueOutcome::failed : QueueOutcome::aborted;
}

/// Waits as wait_until does, but also ends if another thread has given up. If this thread gives up,
/// all other threads end as well.
template <class M, class Ready>
ORIEL_DEVICE_FN QueueOutcome wait_in_queue(const QueueView& queue, const Ready& ready,
                                           const WaitControl& control, std::uint64_t epoch) {
  bool broken = false;
  const WaitOutcome waited = wait_until<M>(
      [&] {
        if (ready()) return true;
        broken = is_broken<M>(queue);
        return broken;
      },
      control, WaitTarget{queue.peer, epoch});
  if (broken) return reason_of_end<M>(queue);
  if (waited != WaitOutcome::ready) give_up<M>(queue);
  return outcome_of(waited);
}

template <class M>
ORIEL_DEVICE_FN void ring_doorbell(const QueueView& queue, std::uint64_t end) {
  const auto low = static_cast<std::uint32_t>(end & 0xffffu);
  const std::uint64_t doorbell =
      static_cast<std::uint64_t>(big_endian(queue.number << 8)) << 32 | big_endian(low << 8);
  // The NIC reads WQEs after the record, and the record after the doorbell.
  const bool records = queue.doorbell_record != nullptr;
  if (queue.reader == Scope::system) {
    if (records) {
      M::template store<Order::release, Scope::system>(queue.doorbell_record, big_endian(low));
    }
    M::template store<Order::release, Scope::system>(queue.doorbell, doorbell);
  } else {
    if (records) {
      M::template store<Order::release, Scope::device>(queue.doorbell_record, big_endian(low));
    }
    M::template store<Order::release, Scope::device>(queue.doorbell, doorbell);
  }
}

/// Selects how loads are ordered. A GPU orders many accesses by one fence. On a CPU each access has
/// its own order, which costs nothing there and which ThreadSanitizer understands.
#if ORIEL_DEVICE_CODE
inline constexpr bool kFencesOnce = true;
#else
inline constexpr bool kFencesOnce = false;
#endif
inline constexpr Order kAcquireOrFence = kFencesOnce ? Order::relaxed : Order::acquire;
template <class M>
ORIEL_DEVICE_FN void fence_once() {
  if constexpr (kFencesOnce) M::template fence<Scope::device>();
}

template <class M>
ORIEL_DEVICE_FN std::uint32_t marked_at(const QueueView& queue, std::uint64_t index) {
  return marked_wqebbs(load_index<M>(&queue.marks[index & (queue.depth - 1)]), index);
}

/// Returns the end of the reservations that are marked without a gap from `from` on. Walked by one
/// thread. On a GPU several loads are in flight, on the guess that reservations have `usual`
/// WQEBBs.
template <class M>
ORIEL_DEVICE_FN std::uint64_t marked_end(Thread, const QueueView& queue, std::uint64_t from,
                                         std::uint32_t usual) {
  constexpr std::uint32_t kAhead = kFencesOnce ? 16 : 1;
  for (std::uint64_t index = from;;) {
    std::uint64_t marks[kAhead];
    ORIEL_DEVICE_UNROLL
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint64_t guess = index + std::uint64_t{i} * usual;
      marks[i] =
          M::template load<kAcquireOrFence, Scope::device>(&queue.marks[guess & (queue.depth - 1)]);
    }
    std::uint32_t wqebbs = usual;
    ORIEL_DEVICE_UNROLL
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      if (wqebbs != usual) break;
      wqebbs = marked_wqebbs(marks[i], index);
      index += wqebbs;
    }
    if (wqebbs == 0) {
      fence_once<M>();
      return index;
    }
  }
}

/// Returns the same end; a warp walks with 32 loads in flight.
template <class M>
ORIEL_DEVICE_FN std::uint64_t marked_end(Warp group, const QueueView& queue, std::uint64_t from,
                                         std::uint32_t usual) {
  for (std::uint64_t index = from;;) {
    const std::uint64_t guess = index + std::uint64_t{group.rank()} * usual;
    const std::uint32_t mine = marked_at<M>(queue, guess);
    std::uint32_t wqebbs = usual;
    for (std::uint32_t lane = 0; lane < group.size() && wqebbs == usual; ++lane) {
      wqebbs = arch::warp_read(mine, lane);
      if (wqebbs == 0) return index;
      index += wqebbs;
    }
  }
}

}  // namespace detail
}  // namespace oriel::device::queue
