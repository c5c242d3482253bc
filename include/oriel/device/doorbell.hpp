// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"
#include "oriel/device/memory.hpp"

/// Sleep and wake-up of CPU ranks that have waited for long. In GPU code these functions do
/// nothing, because GPU threads poll.
///
/// Example: publishes a word that several ranks await, and wakes those that sleep.
/// ```cpp
/// ORIEL_DEVICE_FN void publish(std::uint32_t* word, std::uint32_t value,
///                              oriel::device::Doorbell* doorbells, std::uint32_t ranks) {
///   using namespace oriel::device;
///   Memory::store<Order::release>(word, value);
///   ring_fence();  // once for all doorbells
///   for (std::uint32_t i = 0; i < ranks; ++i) ring_fenced(doorbells[i]);
/// }
/// ```
namespace oriel::device {

/// Doorbell of one rank, in its control memory, where every rank of its LSA team can write it. It
/// has its own cache line. Zero-initialised. Any number of threads may sleep on it.
///
/// The doorbell is an eventcount (Reed and Kanodia, 1979) on a futex. The sleeper increments
/// `sleeping`, fences, reads `ticket`, and polls its condition once more. It sleeps only while
/// `ticket` keeps that value. The publisher writes the data, fences, and reads `sleeping`. Either
/// the publisher sees the sleeper and increments the ticket, or the sleeper's last poll sees the
/// data. So no wake-up is lost. A killed sleeper leaves its count behind, which only costs needless
/// wake-ups.
///
/// The fences are asymmetric (arch::fence_light). The publisher's mostly needs no fence
/// instruction, because the sleeper's makes all publishers fence. If the kernel refuses the latter,
/// a wake-up may be lost, so a sleep lasts at most kUnsureSleepNs.
struct alignas(64) Doorbell {
  std::uint32_t sleeping;  ///< number of threads that are about to sleep or asleep
  std::uint32_t ticket;    ///< futex word; incremented by every wake-up
};
static_assert(sizeof(Doorbell) == 64);

/// Fence of a publisher that rings several doorbells. Call it once after the stores (of release
/// order, or packets), then ring_fenced for each doorbell. Orders these stores before the loads of
/// the doorbells, as a sleeper sees them, and nothing else. Local; not blocking; any thread. Does
/// nothing in GPU code.
ORIEL_DEVICE_FN void ring_fence() {
#if !ORIEL_DEVICE_CODE
  arch::fence_light();
#endif
}

/// Wakes the threads that sleep on `doorbell`, if any. Usually costs one load of a shared cache
/// line. Local; not blocking; any thread. Relaxed: requires ring_fence() between the stores and
/// this call.
ORIEL_DEVICE_FN void ring_fenced([[maybe_unused]] Doorbell& doorbell) {
#if !ORIEL_DEVICE_CODE
#if defined(__SANITIZE_THREAD__)
  // A read-modify-write of the sleeper's own word orders like the fences, which this tool ignores.
  const bool asleep = __atomic_fetch_add(&doorbell.sleeping, 0u, __ATOMIC_ACQ_REL) != 0;
#else
  const bool asleep = arch::load<Order::relaxed, Scope::system>(&doorbell.sleeping) != 0;
#endif
  if (asleep) {
    arch::fetch_add<Order::acq_rel, Scope::system>(&doorbell.ticket, 1u);
    arch::futex_wake_all(&doorbell.ticket);
  }
#endif
}

/// Rings one doorbell. Call it after the stores (of release order, or packets) for which the rank
/// may wait; it begins with a ring_fence(). Local; not blocking; any thread.
ORIEL_DEVICE_FN void ring(Doorbell& doorbell) {
  ring_fence();
  ring_fenced(doorbell);
}

namespace detail {

/// Longest sleep of a sleeper that may miss a wake-up.
inline constexpr std::uint64_t kUnsureSleepNs = 1'000'000;

/// Result of announcing a sleep.
struct Announcement {
  std::uint32_t ticket = 0;
  bool is_sure = true;  ///< every later publisher sees the sleeper
};

// Sleeper's side: announce, poll the condition once more, sleep unless it holds, withdraw.
ORIEL_DEVICE_FN Announcement announce_sleep([[maybe_unused]] Doorbell& doorbell) {
#if ORIEL_DEVICE_CODE
  return {};
#else
  arch::fetch_add<Order::acq_rel, Scope::system>(&doorbell.sleeping, 1u);
  const bool is_sure = arch::fence_heavy();
  return {arch::load<Order::acquire, Scope::system>(&doorbell.ticket), is_sure};
#endif
}

ORIEL_DEVICE_FN void sleep([[maybe_unused]] Doorbell& doorbell,
                           [[maybe_unused]] const Announcement& announced,
                           [[maybe_unused]] std::uint64_t limit_ns) {
#if !ORIEL_DEVICE_CODE
  if (!announced.is_sure && limit_ns > kUnsureSleepNs) limit_ns = kUnsureSleepNs;
  arch::futex_wait(&doorbell.ticket, announced.ticket, limit_ns);
#endif
}

ORIEL_DEVICE_FN void withdraw_sleep([[maybe_unused]] Doorbell& doorbell) {
#if !ORIEL_DEVICE_CODE
  arch::fetch_add<Order::release, Scope::system>(&doorbell.sleeping, ~0u);  // minus one
#endif
}

}  // namespace detail
}  // namespace oriel::device
