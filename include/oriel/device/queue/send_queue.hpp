// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/group.hpp"
#include "oriel/device/memory.hpp"
#include "oriel/device/queue/completion.hpp"
#include "oriel/device/queue/work_entry.hpp"
#include "oriel/device/wait.hpp"

/// A send queue that device code fills: reserve blocks of the ring, write entries into them,
/// publish them to the NIC, wait until they are complete. Any number of threads use one queue at
/// once.
///
/// All indexes count blocks since the queue began, below 2^63, which none ever reaches, and are
/// "one past the last"; the NIC is told the low 16 bits. At any time
///   completed <= sweep / 2 <= reserved,
/// and blocks in use, from `completed` up to the last that anybody writes, are at most `depth`.
namespace oriel::device::queue {

/// The words that producers share, in their device's memory. Zero but as begin_at() says.
/// Each has a cache line of 128 bytes to itself where threads meet.
struct alignas(128) QueueIndexes {
  /// As they are when all blocks before `base` have been posted and completed.
  ORIEL_DEVICE_FN void begin_at(std::uint64_t base) {
    reserved = completed = base;
    sweep = base << 1;
  }

  std::uint64_t reserved = 0;
  /// Twice how far the NIC has been told, and one more while somebody sweeps.
  alignas(128) std::uint64_t sweep = 0;
  alignas(128) std::uint64_t completed = 0;
  /// The first error that a completion has told of (QueueError); later ones are its consequences.
  std::uint64_t error = 0;
  /// Nonzero once a thread has given up: its blocks are a gap that nobody closes, so nothing more
  /// is published.
  std::uint32_t broken = 0;
  std::uint32_t looking = 0;                     ///< nonzero while a thread looks at the completion
  alignas(128) std::uint64_t fetch_tickets = 0;  ///< result slots handed out
  /// One past the last get, and how far gets are known to be visible.
  alignas(128) std::uint64_t gets_end = 0;
  std::uint64_t gets_visible = 0;
};

/// A queue as kernels see it. The host makes it, and what it points to outlives its users. Fits
/// into constant or global memory; the same for all threads.
struct QueueView {
  Block* ring = nullptr;     ///< depth blocks
  std::uint32_t depth = 0;   ///< a power of two, 128 to 32768
  std::uint32_t number = 0;  ///< the NIC's, 24 bits
  std::int32_t peer = -1;    ///< world rank at the other end, for errors and stall records
  /// Who reads the ring: another thread of this device, or a CPU or NIC.
  Scope reader = Scope::system;
  /// Whether the result of a read is visible with its completion only after a dump entry.
  bool gets_need_dump = false;

  /// Its second word: how far this queue is filled. Null if the doorbell says all that the NIC
  /// wants to know, which spares a fence.
  std::uint32_t* doorbell_record = nullptr;
  std::uint64_t* doorbell = nullptr;  ///< the NIC's register
  const Completion* completion = nullptr;
  /// Where the NIC keeps the first error (QueueError), which the collapsed completion may have
  /// overwritten with that of an entry flushed after it. Null if it has no such word.
  const std::uint64_t* nic_error = nullptr;
  QueueIndexes* indexes = nullptr;
  std::uint64_t* marks = nullptr;  ///< depth words, zero at first

  /// Where old values of atomics land: fetch_slots words, and one for those nobody wants.
  std::uint64_t* fetch_values = nullptr;
  std::uint64_t* fetch_turns = nullptr;  ///< of each slot: the ticket that may use it next
  std::uint32_t fetch_slots = 0;         ///< a power of two
  std::uint32_t fetch_key = 0;           ///< of fetch_values

  /// The word behind the slots, for old values that nobody wants and for dumps. It lies in the same
  /// memory as what gets fill.
  [[nodiscard]] ORIEL_DEVICE_FN LocalRange spare_word() const { return slot_range(fetch_slots, 8); }
  [[nodiscard]] ORIEL_DEVICE_FN LocalRange slot_range(std::uint32_t slot,
                                                      std::uint32_t bytes) const {
    return {reinterpret_cast<std::uint64_t>(fetch_values + slot), fetch_key, bytes};
  }
};

/// The most blocks of one reservation: of the least depth no more than a half.
inline constexpr std::uint32_t kReservationMost = 64;
inline constexpr std::uint32_t kDepthLeast = 128;
inline constexpr std::uint32_t kDepthMost = 32768;

/// How an operation on a queue ended.
enum class QueueOutcome : std::uint32_t {
  done = 0,
  aborted = 1,    ///< the communicator's abort word was set, or another thread gave up
  timed_out = 2,  ///< WaitControl::timeout_ns passed
  failed = 3,     ///< the NIC reported an error: QueueIndexes::error
  refused = 4,    ///< arguments that lead outside what is registered; nothing was posted
};

constexpr ORIEL_DEVICE_FN QueueOutcome outcome_of(WaitOutcome outcome) {
  return static_cast<QueueOutcome>(outcome);
}

/// Blocks that a group has to itself, from `base` on.
struct Reservation {
  std::uint64_t base = 0;
  std::uint32_t blocks = 0;
  std::uint32_t lanes = 0;  ///< of Lanes: who has reserved together
  /// For the thread that reserved: the NIC had just been told of everything before.
  bool is_next = false;
  [[nodiscard]] ORIEL_DEVICE_FN std::uint64_t end() const { return base + blocks; }
};

namespace detail {

/// What stands in marks[base % depth] once all blocks of the reservation are written. One mark for
/// all of them, so that a look at one word tells whether there is something to hand over; the marks
/// of other blocks stay as they are. Unlike that of any reservation before 2^56 blocks have passed.
inline constexpr std::uint32_t kMarkShift = 8;
constexpr ORIEL_DEVICE_FN std::uint64_t mark_of(std::uint64_t base, std::uint32_t blocks) {
  return base << kMarkShift | blocks;
}
/// How many blocks the reservation at `base` has, if `mark` is its mark; else 0.
constexpr ORIEL_DEVICE_FN std::uint32_t marked_blocks(std::uint64_t mark, std::uint64_t base) {
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

/// Why a broken queue is so, for all but the thread that gave up.
template <class M>
ORIEL_DEVICE_FN QueueOutcome reason_of_end(const QueueView& queue) {
  const bool failed = M::template load<Order::relaxed, Scope::device>(&queue.indexes->error) != 0;
  return failed ? QueueOutcome::failed : QueueOutcome::aborted;
}

/// As wait_until; but ends where another thread has given up, and has all others end so
/// when this one gives up.
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
  // The NIC reads entries after the record, and the record after the doorbell.
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

/// What a GPU gets by one fence for many accesses has an order of its own at each access on a CPU,
/// where that costs nothing and ThreadSanitizer understands it.
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
  return marked_blocks(load_index<M>(&queue.marks[index & (queue.depth - 1)]), index);
}

/// The end of the reservations that are marked without a gap from `from` on. One thread's walk, on
/// a GPU with some loads in flight, on the guess that reservations have the `usual` size.
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
    std::uint32_t blocks = usual;
    ORIEL_DEVICE_UNROLL
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      if (blocks != usual) break;
      blocks = marked_blocks(marks[i], index);
      index += blocks;
    }
    if (blocks == 0) {
      fence_once<M>();
      return index;
    }
  }
}

/// The same by a warp, with 32 loads in flight.
template <class M>
ORIEL_DEVICE_FN std::uint64_t marked_end(Warp group, const QueueView& queue, std::uint64_t from,
                                         std::uint32_t usual) {
  for (std::uint64_t index = from;;) {
    const std::uint64_t guess = index + std::uint64_t{group.rank()} * usual;
    const std::uint32_t mine = marked_at<M>(queue, guess);
    std::uint32_t blocks = usual;
    for (std::uint32_t lane = 0; lane < group.size() && blocks == usual; ++lane) {
      blocks = arch::warp_read(mine, lane);
      if (blocks == 0) return index;
      index += blocks;
    }
  }
}

}  // namespace detail
}  // namespace oriel::device::queue
