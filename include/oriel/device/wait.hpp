// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/doorbell.hpp"
#include "oriel/device/memory.hpp"

/// Wait loop of Oriel, on GPUs and CPUs. A wait ends when a condition holds, the communicator is
/// aborted, or a deadline passes.
///
/// A caller that gets `aborted` or `timed_out` returns at once and publishes nothing more: no
/// packet, flag, arrival or epoch. Such a side effect would be false information for a peer. The
/// peer's own wait ends the same way. In a group of threads, Group::any spreads the outcome first.
///
/// Blocking. A function of these headers is *blocking* if it may wait for another rank, a NIC or a
/// kernel. Waits for the threads of its own group do not count. All functions here but wait_until
/// only compute: any thread may call them, they do not block and access no memory.
///
/// Example: waits until world rank `sender` has stored `epoch`.
/// ```cpp
/// ORIEL_DEVICE_FN bool wait_for(const std::uint32_t* word, std::uint32_t epoch,
///                               std::int32_t sender, const oriel::device::WaitControl& control) {
///   using namespace oriel::device;
///   const auto arrived = [&] { return Memory::load<Order::acquire>(word) == epoch; };
///   return wait_until(arrived, control, WaitTarget{sender, epoch}) == WaitOutcome::ready;
/// }
/// ```
namespace oriel::device {

/// Outcome of a wait.
enum class WaitOutcome : std::uint32_t {
  ready = 0,      ///< the condition held
  aborted = 1,    ///< the abort word was set
  timed_out = 2,  ///< WaitControl::timeout_ns passed; StallRecord::gave_up names the peer
};

/// Names the peer for which a rank waits, for the monitor on its host. The monitor reads the record
/// and the waiting threads write it; for a GPU it lies in pinned host memory. Its owner initialises
/// it to zero. Each word is written indivisibly. If several threads wait, the record names one
/// peer.
struct StallRecord {
  /// Zero, or the peer (see stalled_rank) after a wait has lasted stall_report_ns(). Zero again
  /// when that wait has ended. Written after the two words below (release).
  std::uint64_t waiting;
  std::uint64_t epoch;     ///< WaitTarget::epoch of that wait
  std::uint64_t since_ns;  ///< start of that wait on the waiter's clock; distinguishes two waits
  /// Zero, or the peer on which a wait timed out. Only the record's owner clears it.
  std::uint64_t gave_up;
};
static_assert(sizeof(StallRecord) == 32);

/// Encodes a peer as a word of StallRecord, which is never zero.
constexpr ORIEL_DEVICE_FN std::uint64_t stall_word(std::int32_t world_rank) {
  return (std::uint64_t{1} << 32) | static_cast<std::uint32_t>(world_rank);
}
/// Returns the world rank in a nonzero word of StallRecord, or -1 if the waiter did not know it.
constexpr ORIEL_DEVICE_FN std::int32_t stalled_rank(std::uint64_t word) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(word));
}

/// Longest duration of a wait before it writes a stall record; see stall_report_ns().
inline constexpr std::uint64_t kStallReportNs = 1'000'000'000;
/// Returns how long a wait lasts before it writes a stall record: half its timeout, at most
/// kStallReportNs. A `timeout_ns` of 0 means no timeout. Other ranks then learn of the stall before
/// a rank that waits for this rank times out.
constexpr ORIEL_DEVICE_FN std::uint64_t stall_report_ns(std::uint64_t timeout_ns) {
  return timeout_ns == 0 || timeout_ns / 2 > kStallReportNs ? kStallReportNs : timeout_ns / 2;
}
/// Longest sleep of a CPU rank between two checks of the abort word and the clock.
inline constexpr std::uint64_t kSleepSliceNs = 100'000'000;

/// Controls how the waits of one rank end and where they are reported. Passed by value to kernels.
/// The pointees belong to the communicator and outlive its kernels. A default-constructed object
/// waits forever.
struct WaitControl {
  /// Ends every wait if nonzero. On a CPU the wait ends within kSleepSliceNs, or at once if the
  /// setter also rings `doorbell`; on a GPU within some milliseconds. For a GPU the word lies in
  /// pinned host memory. Null: waits cannot be aborted.
  const std::uint32_t* abort = nullptr;
  StallRecord* stall = nullptr;  ///< null: waits are not reported
  std::uint64_t timeout_ns = 0;  ///< timeout of one wait, counted from its start; 0: none
  std::int32_t self = -1;        ///< world rank of the waiter
  /// CPU only: a wait spins for `spin_ns`, then polls between sched_yield calls for `yield_ns`,
  /// then sleeps. Set both low if there are more ranks than processors.
  std::uint32_t spin_ns = 20'000;
  std::uint32_t yield_ns = 200'000;  ///< CPU only: length of the phase of sched_yield calls
  /// CPU only: doorbell that peers ring after they have written data for which this rank may wait.
  /// Null: a long wait sleeps 50 us between polls instead.
  Doorbell* doorbell = nullptr;
};

/// Awaited event, for the stall record.
struct WaitTarget {
  std::int32_t rank = -1;   ///< world rank of the peer that should act, or -1
  std::uint64_t epoch = 0;  ///< number of the awaited action: an epoch or a count
};

namespace detail {

/// Packs the progress of one wait into one register. It holds the start in nanoseconds, except for
/// the low three bits. Two of them hold the result of the last check (0: continue), and one whether
/// a stall record was written.
using WaitProgress = std::uint64_t;
inline constexpr WaitProgress kSleepResult = 3;  ///< not a value of WaitOutcome
inline constexpr WaitProgress kResultMask = 3;
inline constexpr WaitProgress kReported = 4;
inline constexpr WaitProgress kFlags = 7;

template <class M>
ORIEL_DEVICE_FN void clear_stall(StallRecord* stall, WaitProgress progress) {
  // If another thread has claimed the record meanwhile, that thread claims it again at its next
  // check.
  if ((progress & kReported) != 0) {
    M::template store<Order::relaxed, Scope::system>(&stall->waiting, std::uint64_t{0});
  }
}

template <class M>
ORIEL_DEVICE_FN WaitProgress report_stall(StallRecord* stall, WaitTarget target,
                                          WaitProgress progress) {
  if (M::template load<Order::relaxed, Scope::system>(&stall->waiting) != 0) return progress;
  M::template store<Order::relaxed, Scope::system>(&stall->epoch, target.epoch);
  M::template store<Order::relaxed, Scope::system>(&stall->since_ns, progress & ~kFlags);
  M::template store<Order::release, Scope::system>(&stall->waiting, stall_word(target.rank));
  return progress | kReported;
}

/// Checks the abort word and the clock, once in kPollsPerCheck polls. Takes fields by value, so an
/// out-of-line call does not copy a kernel's parameters to addressable memory.
template <class M>
ORIEL_DEVICE_SLOW WaitProgress check_progress(const std::uint32_t* abort, StallRecord* stall,
                                              std::uint64_t timeout_ns,
                                              [[maybe_unused]] std::uint32_t spin_ns,
                                              [[maybe_unused]] std::uint32_t yield_ns,
                                              [[maybe_unused]] bool has_doorbell, WaitTarget target,
                                              WaitProgress progress) {
  progress &= ~kResultMask;
  if (abort != nullptr && M::template load<Order::relaxed, Scope::system>(abort) != 0) {
    clear_stall<M>(stall, progress);
    return progress | static_cast<WaitProgress>(WaitOutcome::aborted);
  }
  const std::uint64_t now = M::clock_ns();
  if (progress == 0) return now & ~kFlags;
  const std::uint64_t elapsed_ns = now - (progress & ~kFlags);
  if (timeout_ns != 0 && elapsed_ns >= timeout_ns) {
    if (stall != nullptr) {
      M::template store<Order::release, Scope::system>(&stall->gave_up, stall_word(target.rank));
    }
    clear_stall<M>(stall, progress);
    return progress | static_cast<WaitProgress>(WaitOutcome::timed_out);
  }
  if (stall != nullptr && elapsed_ns >= stall_report_ns(timeout_ns)) {
    progress = report_stall<M>(stall, target, progress);
  }
#if !ORIEL_DEVICE_CODE
  if (elapsed_ns < spin_ns) return progress;
  if (elapsed_ns - spin_ns < yield_ns) {
    arch::yield();
  } else if (has_doorbell) {
    progress |= kSleepResult;
  } else {
    arch::sleep_ns(50'000);
  }
#endif
  return progress;
}

template <class M>
ORIEL_DEVICE_FN WaitOutcome end_ready(StallRecord* stall, WaitProgress progress) {
#if !ORIEL_DEVICE_CODE
  arch::annotate_happens_after();
#endif
  clear_stall<M>(stall, progress);
  return WaitOutcome::ready;
}

template <class M>
ORIEL_DEVICE_FN std::uint64_t sleep_limit_ns(std::uint64_t timeout_ns, WaitProgress progress) {
  if (timeout_ns == 0) return kSleepSliceNs;
  const std::uint64_t elapsed_ns = M::clock_ns() - (progress & ~kFlags);
  const std::uint64_t left_ns = elapsed_ns < timeout_ns ? timeout_ns - elapsed_ns : 0;
  return left_ns < kSleepSliceNs ? left_ns : kSleepSliceNs;
}

/// Polls once more, then sleeps once unless the condition holds or the abort word is set (CPU
/// rank). Returns whether the condition held at this poll.
template <class M, class Ready>
ORIEL_DEVICE_FN bool sleep_once(const Ready& ready, const WaitControl& control,
                                WaitProgress progress) {
  const Announcement announced = announce_sleep(*control.doorbell);
  const bool done = ready();
  const bool stop = control.abort != nullptr &&
                    M::template load<Order::relaxed, Scope::system>(control.abort) != 0;
  if (!done && !stop) {
    sleep(*control.doorbell, announced, sleep_limit_ns<M>(control.timeout_ns, progress));
  }
  withdraw_sleep(*control.doorbell);
  return done;
}

}  // namespace detail

/// Polls `ready()` until it returns true, the abort word is set, or the timeout has passed.
/// `ready` is a callable without arguments that loads a word and returns whether the wait is over.
/// It loads in acquire order if more than the loaded word must be visible, otherwise in relaxed
/// order. It may keep what it loaded. After it has returned true it is not called again. `target`
/// goes into the stall record.
/// Blocking; each thread calls it for itself. If `ready` returns true, the outcome is `ready` even
/// if the communicator is aborted at the same moment.
/// Cost of waiting on a GPU: the poll and a counter. The abort word (across PCIe) and the clock are
/// read only every 1024 polls. A CPU thread spins, then yields, then sleeps.
/// After any outcome but `ready` the caller returns at once and publishes nothing.
template <class M = Memory, class Ready>
[[nodiscard]] ORIEL_DEVICE_FN WaitOutcome wait_until(const Ready& ready, const WaitControl& control,
                                                     WaitTarget target) {
  detail::WaitProgress progress = 0;
  for (;;) {
#if ORIEL_DEVICE_CODE
#pragma unroll 1
#endif
    for (std::uint32_t poll = 0; poll < arch::kPollsPerCheck; ++poll) {
      if (ready()) return detail::end_ready<M>(control.stall, progress);
      M::relax();
    }
    progress =
        detail::check_progress<M>(control.abort, control.stall, control.timeout_ns, control.spin_ns,
                                  control.yield_ns, control.doorbell != nullptr, target, progress);
    const detail::WaitProgress result = progress & detail::kResultMask;
    if (result == 0) continue;
    if (result != detail::kSleepResult) return static_cast<WaitOutcome>(result);
    if constexpr (arch::kCanSleep) {
      if (control.doorbell != nullptr && detail::sleep_once<M>(ready, control, progress)) {
        return detail::end_ready<M>(control.stall, progress);
      }
    }
  }
}

}  // namespace oriel::device
