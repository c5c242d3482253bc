// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdint>

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "oriel/device/access.hpp"
#include "oriel/device/config.hpp"

/// Host side of the instruction layer: the functions of arch/cuda.cuh with the semantics of
/// std::atomic_ref. Uses compiler builtins, which nvcc's host pass accepts in functions marked for
/// both sides. Scopes are ignored, because the processors of a node are coherent. No access wider
/// than 8 bytes is atomic, so programs do not need libatomic. Functions without a comment have
/// theirs in cuda.cuh. Unless its comment says otherwise, a function does not block and orders no
/// memory, and any thread may call it.
///
/// Example: sleeps until another thread or process has set a word and called futex_wake_all().
/// ```cpp
/// #if !ORIEL_DEVICE_CODE  // GPU code has cuda.cuh instead
/// void wait_until_set(const std::uint32_t* word) {
///   using namespace oriel::device;
///   while (arch::load<Order::acquire, Scope::system>(word) == 0) {
///     arch::futex_wait(word, 0, 100'000'000);  // looks again after 100 ms at the latest
///   }
/// }
/// #endif
/// ```
namespace oriel::device::arch {

inline constexpr bool kCanSleep = true;              ///< a wait may end in a futex
inline constexpr std::uint32_t kPollsPerCheck = 32;  ///< a check reads the clock, about 25 ns

/// Returns the memory order for the compiler's builtins. `weak` becomes relaxed.
constexpr int builtin_order(Order order) {
  switch (order) {
    case Order::acquire:
      return __ATOMIC_ACQUIRE;
    case Order::release:
      return __ATOMIC_RELEASE;
    case Order::acq_rel:
      return __ATOMIC_ACQ_REL;
    default:
      return __ATOMIC_RELAXED;
  }
}

// --- loads and stores -----------------------------------------------------------------------

template <Order kOrder, Scope, class T>
ORIEL_DEVICE_FN T load(const T* address) {
  if constexpr (kOrder == Order::weak) {
    return *address;
  } else {
    constexpr int order = builtin_order(kOrder);
    return __atomic_load_n(address, order);
  }
}

template <Order kOrder, Scope, class T>
ORIEL_DEVICE_FN void store(T* address, T value) {
  if constexpr (kOrder == Order::weak) {
    *address = value;
  } else {
    constexpr int order = builtin_order(kOrder);
    __atomic_store_n(address, value, order);
  }
}

/// Loads the halves one after the other; each is indivisible unless the order is weak.
template <Order kOrder, Scope kScope>
ORIEL_DEVICE_FN Pair load(const Pair* address) {
  return Pair{{load<kOrder, kScope>(&address->half[0]), load<kOrder, kScope>(&address->half[1])}};
}

/// Stores the halves one after the other; each is indivisible unless the order is weak.
template <Order kOrder, Scope kScope>
ORIEL_DEVICE_FN void store(Pair* address, Pair value) {
  store<kOrder, kScope>(&address->half[0], value.half[0]);
  store<kOrder, kScope>(&address->half[1], value.half[1]);
}

/// Loads the words one after the other; each is indivisible unless the order is weak.
template <Order kOrder, Scope kScope>
ORIEL_DEVICE_FN Pack load(const Pack* address) {
  if constexpr (kOrder == Order::weak) return *address;
  Pack value;
  for (int i = 0; i < 4; ++i) value.word[i] = load<kOrder, kScope>(&address->word[i]);
  return value;
}

/// Stores the words one after the other; each is indivisible unless the order is weak.
template <Order kOrder, Scope kScope>
ORIEL_DEVICE_FN void store(Pack* address, Pack value) {
  if constexpr (kOrder == Order::weak) {
    *address = value;
  } else {
    for (int i = 0; i < 4; ++i) store<kOrder, kScope>(&address->word[i], value.word[i]);
  }
}

/// Uses no hint on the host, like the next two functions: the processor's prefetchers do better.
template <class T>
ORIEL_DEVICE_FN T load_streaming(const T* address) {
  return *address;
}
template <class T>
ORIEL_DEVICE_FN T load_read_only(const T* address) {
  return *address;
}
template <class T>
ORIEL_DEVICE_FN void store_streaming(T* address, T value) {
  *address = value;
}

/// Prefetches a cache line that is about to be written, without waiting for it.
ORIEL_DEVICE_FN void prefetch_for_write([[maybe_unused]] const void* address) {
#if defined(__x86_64__) && !defined(__CUDACC__)
  // The compiler's builtin requests a shared copy if the target is plain x86-64. prefetchw is valid
  // on all x86-64 processors; on the first ones it does nothing.
  asm volatile("prefetchw %0" ::"m"(*static_cast<const char*>(address)));
#elif !defined(__CUDACC__)  // nvcc would take it for a GPU instruction, which ptxas refuses
  __builtin_prefetch(address, 1);
#endif
}

// --- read-modify-write ----------------------------------------------------------------------

template <Order kOrder, Scope, class T>
ORIEL_DEVICE_FN T fetch_add(T* address, T value) {
  constexpr int order = builtin_order(kOrder);
  return __atomic_fetch_add(address, value, order);
}

template <Order kOrder, Scope kScope, class T>
ORIEL_DEVICE_FN void reduce_add(T* address, T value) {
  fetch_add<kOrder, kScope>(address, value);
}

template <Order kOrder, Scope>
ORIEL_DEVICE_FN std::uint64_t fetch_max(std::uint64_t* address, std::uint64_t value) {
  constexpr int order = builtin_order(kOrder);
  std::uint64_t old = __atomic_load_n(address, __ATOMIC_RELAXED);
  // Exchanges even if the value stays, to order as a read-modify-write does.
  while (!__atomic_compare_exchange_n(address, &old, old < value ? value : old, true, order,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
}

template <Scope>
ORIEL_DEVICE_FN std::uint64_t fetch_or(std::uint64_t* address, std::uint64_t bits) {
  return __atomic_fetch_or(address, bits, __ATOMIC_ACQ_REL);
}

template <Scope>
ORIEL_DEVICE_FN std::uint64_t exchange(std::uint64_t* address, std::uint64_t value) {
  return __atomic_exchange_n(address, value, __ATOMIC_ACQ_REL);
}

template <Order kOrder, Scope, class T>
ORIEL_DEVICE_FN T compare_swap(T* address, T expected, T value) {
  constexpr int order = builtin_order(kOrder);
  constexpr int on_failure =
      kOrder == Order::relaxed || kOrder == Order::release ? __ATOMIC_RELAXED : __ATOMIC_ACQUIRE;
  __atomic_compare_exchange_n(address, &expected, value, false, order, on_failure);
  return expected;
}

// --- fences ---------------------------------------------------------------------------------

#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer does not know fences; a read-modify-write of one shared word orders like a fence.
inline std::uint32_t fence_word = 0;  ///< always 0; gives ThreadSanitizer an order
template <Scope>
ORIEL_DEVICE_FN void fence_acq_rel() {
  __atomic_fetch_add(&fence_word, 0u, __ATOMIC_SEQ_CST);
}
template <Scope = Scope::system>
ORIEL_DEVICE_FN void fence_seq_cst() {
  __atomic_fetch_add(&fence_word, 0u, __ATOMIC_SEQ_CST);
}
#else
template <Scope>
ORIEL_DEVICE_FN void fence_acq_rel() {
  __atomic_thread_fence(__ATOMIC_ACQ_REL);
}
template <Scope = Scope::system>
ORIEL_DEVICE_FN void fence_seq_cst() {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
#endif

#if !ORIEL_DEVICE_CODE
/// 1 if fence_heavy() of any process reaches this process, 2 if the kernel refuses that; 0 before
/// the first call of joins_heavy_fences().
inline std::uint32_t heavy_fences = 0;

/// Registers this process for fence_heavy(), at the first call. Returns whether it is registered. A
/// forked child is, too.
ORIEL_DEVICE_FN bool joins_heavy_fences() {
  std::uint32_t state = __atomic_load_n(&heavy_fences, __ATOMIC_RELAXED);
  if (state == 0) {
    state = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0) == 0 ? 1 : 2;
    __atomic_store_n(&heavy_fences, state, __ATOMIC_RELAXED);
  }
  return state == 1;
}
#endif

/// Light side of an asymmetric fence, for Dekker's pattern: one thread stores a, then loads b. The
/// other stores b, then loads a. With fence_light() in one and fence_heavy() in the other, at least
/// one load finds the other thread's store. Orders nothing else. The light side has no fence
/// instruction, so the thread does not wait until its stores have left the processor. Without
/// membarrier(2), and for ThreadSanitizer, it is a whole fence.
ORIEL_DEVICE_FN void fence_light() {
#if defined(__SANITIZE_THREAD__) || ORIEL_DEVICE_CODE
  fence_seq_cst();
#else
  if (joins_heavy_fences()) {
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
  } else {
    fence_seq_cst();
  }
#endif
}
/// Heavy side; see fence_light(). Interrupts the processors that run threads of registered
/// processes, which takes some microseconds. Returns false if the kernel refuses it. Then it is a
/// whole fence of this thread alone, and both loads may miss the other thread's store.
[[nodiscard]] ORIEL_DEVICE_FN bool fence_heavy() {
#if defined(__SANITIZE_THREAD__)
  fence_seq_cst();
  return true;
#else
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0) == 0) return true;
  fence_seq_cst();
  return false;
#endif
}

/// Tells ThreadSanitizer of order through other processes, which it does not see either. Example: a
/// NIC's thread reads a message, a peer computes a result from it, and a third process stores the
/// result. A thread here continues, ordered only by the data. A sender calls
/// annotate_happens_before() after it has read and before it publishes. A thread that has found
/// data of others calls annotate_happens_after(). Without ThreadSanitizer both do nothing.
#if defined(__SANITIZE_THREAD__)
inline std::uint32_t happens_before_word = 0;  ///< always 0; gives ThreadSanitizer an order
/// Releases, for ThreadSanitizer only; see above.
ORIEL_DEVICE_FN void annotate_happens_before() {
  __atomic_fetch_add(&happens_before_word, 0u, __ATOMIC_RELEASE);
}
/// Acquires, for ThreadSanitizer only; see above.
ORIEL_DEVICE_FN void annotate_happens_after() {
  static_cast<void>(__atomic_load_n(&happens_before_word, __ATOMIC_ACQUIRE));
}
#else
ORIEL_DEVICE_FN void annotate_happens_before() {}
/// Tells ThreadSanitizer that this thread runs after those that have called
/// annotate_happens_before().
ORIEL_DEVICE_FN void annotate_happens_after() {}
#endif

// --- time -----------------------------------------------------------------------------------

/// Pauses a polling thread between two polls.
ORIEL_DEVICE_FN void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

/// Returns CLOCK_MONOTONIC in nanoseconds.
ORIEL_DEVICE_FN std::uint64_t clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

/// Suspends the thread for `duration_ns`, or until a signal arrives. Blocks only for this time.
ORIEL_DEVICE_FN void sleep_ns(std::uint32_t duration_ns) {
  const timespec duration{static_cast<time_t>(duration_ns / 1'000'000'000u),
                          static_cast<long>(duration_ns % 1'000'000'000u)};
  nanosleep(&duration, nullptr);
}

/// Lets another thread run on this processor.
ORIEL_DEVICE_FN void yield() {
  sched_yield();
}

// --- sleeping in the kernel -------------------------------------------------------------------
// The futexes are shared: the word may lie in memory that other processes map at other addresses.
// This header is compiled into user programs, so it makes system calls directly, not through the
// library's table. Every outcome of these calls only leads to the next poll.

/// Sleeps while *word == expected, for at most `limit_ns`. Blocking; may return early without
/// reason.
ORIEL_DEVICE_FN void futex_wait(const std::uint32_t* word, std::uint32_t expected,
                                std::uint64_t limit_ns) {
  const timespec limit{static_cast<time_t>(limit_ns / 1'000'000'000u),
                       static_cast<long>(limit_ns % 1'000'000'000u)};
  const long rc = syscall(SYS_futex, word, FUTEX_WAIT, expected, &limit, nullptr, 0);
  // If the kernel refuses futexes (a sandbox), sleep a little instead of spinning.
  if (rc != 0 && errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT) sleep_ns(100'000);
}

/// Wakes every thread of every process that sleeps on `word`.
ORIEL_DEVICE_FN void futex_wake_all(std::uint32_t* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, nullptr, nullptr, 0);
}

// --- threads and kernels ----------------------------------------------------------------------
// On the host every cooperative group has one thread, and no kernel depends on another.

ORIEL_DEVICE_FN std::uint32_t cta_thread_rank() {
  return 0;
}
ORIEL_DEVICE_FN std::uint32_t cta_thread_count() {
  return 1;
}
ORIEL_DEVICE_FN void cta_sync() {}
ORIEL_DEVICE_FN bool cta_any(bool mine) {
  return mine;
}
ORIEL_DEVICE_FN void barrier_sync(std::uint32_t, std::uint32_t) {}
ORIEL_DEVICE_FN bool barrier_any(std::uint32_t, std::uint32_t, bool mine) {
  return mine;
}
ORIEL_DEVICE_FN std::uint32_t warp_lane() {
  return 0;
}
ORIEL_DEVICE_FN std::uint32_t warp_size() {
  return 1;
}
ORIEL_DEVICE_FN void warp_sync() {}
ORIEL_DEVICE_FN bool warp_any(bool mine) {
  return mine;
}
ORIEL_DEVICE_FN std::uint64_t cta_broadcast(std::uint64_t value) {
  return value;
}
ORIEL_DEVICE_FN std::uint32_t lanes_together(std::uint64_t) {
  return 1;
}
ORIEL_DEVICE_FN std::uint32_t lanes_before(std::uint32_t) {
  return 0;
}
ORIEL_DEVICE_FN std::uint32_t lanes_count(std::uint32_t) {
  return 1;
}
ORIEL_DEVICE_FN void lanes_sync(std::uint32_t) {}
ORIEL_DEVICE_FN std::uint64_t lanes_broadcast(std::uint32_t, std::uint64_t value) {
  return value;
}
ORIEL_DEVICE_FN std::uint64_t warp_broadcast(std::uint64_t value) {
  return value;
}
ORIEL_DEVICE_FN std::uint32_t warp_read(std::uint32_t value, std::uint32_t) {
  return value;
}
ORIEL_DEVICE_FN void grid_dependency_wait() {}
ORIEL_DEVICE_FN void grid_launch_dependents() {}

template <class T>
ORIEL_DEVICE_FN void keep_in_register(T*&) {}
ORIEL_DEVICE_FN void keep_in_register(std::uint64_t&) {}

}  // namespace oriel::device::arch
