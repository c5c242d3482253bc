// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "oriel/device/access.hpp"
#include "oriel/device/config.hpp"
#if ORIEL_DEVICE_CODE
#include "oriel/device/arch/cuda.cuh"
#else
#include "oriel/device/arch/host.hpp"
#endif

/// Memory accesses with an explicit order and scope, with the same interface on GPUs and CPUs.
///
/// Example: one thread publishes a value by a flag, and a thread of any processor takes it.
/// ```cpp
/// ORIEL_DEVICE_FN void publish(std::uint64_t* data, std::uint32_t* flag, std::uint64_t value) {
///   using namespace oriel::device;
///   Memory::store<Order::weak>(data, value);
///   Memory::store<Order::release>(flag, 1u);
/// }
/// ORIEL_DEVICE_FN bool try_take(const std::uint64_t* data, const std::uint32_t* flag,
///                               std::uint64_t& value) {
///   using namespace oriel::device;
///   if (Memory::load<Order::acquire>(flag) == 0) return false;
///   value = Memory::load<Order::weak>(data);
///   return true;
/// }
/// ```
namespace oriel::device {

/// Memory policy: the template parameter of waits, packets, barriers and collective algorithms. A
/// test may replace it, to count accesses or to explore interleavings. This policy uses the
/// hardware.
///
/// All functions are local and thread-safe, do not block and never fail. T is std::uint32_t,
/// std::uint64_t, Pack or Pair, and addresses are aligned to the size of T. A 4- or 8-byte access
/// is indivisible; an access of Pack or Pair only per element (see access.hpp). On a GPU the
/// address is in global memory.
struct Memory {
  /// True for types on which read-modify-write operations act.
  template <class T>
  static constexpr bool kIsWord =
      std::is_same_v<T, std::uint32_t> || std::is_same_v<T, std::uint64_t>;
  /// True for types that can be loaded and stored.
  template <class T>
  static constexpr bool kIsAccessible =
      kIsWord<T> || std::is_same_v<T, Pack> || std::is_same_v<T, Pair>;

  /// Loads a value. Order: weak, relaxed or acquire. An acquire load reads a value that a release
  /// wrote. The accesses before this release then become visible to this thread. They also become
  /// visible to threads that synchronise with this thread afterwards.
  template <Order kOrder, Scope kScope = Scope::system, class T>
  [[nodiscard]] static ORIEL_DEVICE_FN T load(const T* address) {
    static_assert(kIsAccessible<T>);
    static_assert(kOrder == Order::weak || kOrder == Order::relaxed || kOrder == Order::acquire);
    return arch::load<kOrder, kScope>(address);
  }

  /// Stores a value. Order: weak, relaxed or release. A release covers earlier accesses of this
  /// thread and of threads with which it has synchronised, as in "group.sync(), then one thread
  /// releases".
  template <Order kOrder, Scope kScope = Scope::system, class T>
  static ORIEL_DEVICE_FN void store(T* address, T value) {
    static_assert(kIsAccessible<T>);
    static_assert(kOrder == Order::weak || kOrder == Order::relaxed || kOrder == Order::release);
    arch::store<kOrder, kScope>(address, value);
  }

  /// Loads data that this thread reads once, in weak order. The data is not allocated in the GPU's
  /// L1 cache.
  template <class T>
  [[nodiscard]] static ORIEL_DEVICE_FN T load_streaming(const T* address) {
    static_assert(kIsAccessible<T>);
    return arch::load_streaming(address);
  }

  /// Loads as load_streaming does, through the GPU's non-coherent path. No thread, including this
  /// one, may write the memory while the kernel runs. So it is not for in-place calls or peers'
  /// data.
  template <class T>
  [[nodiscard]] static ORIEL_DEVICE_FN T load_read_only(const T* address) {
    static_assert(kIsAccessible<T>);
    return arch::load_read_only(address);
  }

  /// Stores data that this thread does not read again, in weak order.
  template <class T>
  static ORIEL_DEVICE_FN void store_streaming(T* address, T value) {
    static_assert(kIsAccessible<T>);
    arch::store_streaming(address, value);
  }

  /// Adds modulo 2^32 or 2^64 and returns the old value. Order: relaxed, acquire, release or
  /// acq_rel. On a GPU the address must not be in pinned host memory: the bus to the host may have
  /// no atomics.
  template <Order kOrder, Scope kScope = Scope::system, class T>
  static ORIEL_DEVICE_FN T fetch_add(T* address, T value) {
    static_assert(kIsWord<T> && kOrder != Order::weak);
    return arch::fetch_add<kOrder, kScope>(address, value);
  }

  /// Adds as fetch_add does, but returns no value and so needs no round trip. Order: relaxed or
  /// release.
  template <Order kOrder, Scope kScope = Scope::system, class T>
  static ORIEL_DEVICE_FN void reduce_add(T* address, T value) {
    static_assert(kIsWord<T> && (kOrder == Order::relaxed || kOrder == Order::release));
    arch::reduce_add<kOrder, kScope>(address, value);
  }

  /// Stores the larger of both values and returns the old value. Order: relaxed or acq_rel. On a
  /// GPU not for pinned host memory.
  template <Order kOrder, Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN std::uint64_t fetch_max(std::uint64_t* address, std::uint64_t value) {
    static_assert(kOrder == Order::relaxed || kOrder == Order::acq_rel);
    return arch::fetch_max<kOrder, kScope>(address, value);
  }

  /// Sets bits and returns the old value, in order acq_rel. On a GPU not for pinned host memory.
  template <Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN std::uint64_t fetch_or(std::uint64_t* address, std::uint64_t bits) {
    return arch::fetch_or<kScope>(address, bits);
  }

  /// Stores a value and returns the old value, in order acq_rel. On a GPU not for pinned host
  /// memory.
  template <Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN std::uint64_t exchange(std::uint64_t* address, std::uint64_t value) {
    return arch::exchange<kScope>(address, value);
  }

  /// Stores `value` if memory holds `expected`, and returns the old value. Order: relaxed, acquire
  /// or acq_rel. On a GPU not for pinned host memory.
  template <Order kOrder, Scope kScope = Scope::system, class T>
  static ORIEL_DEVICE_FN T compare_swap(T* address, T expected, T value) {
    static_assert(kIsWord<T> && (kOrder == Order::relaxed || kOrder == Order::acquire ||
                                 kOrder == Order::acq_rel));
    return arch::compare_swap<kOrder, kScope>(address, expected, value);
  }

  /// Executes an acquire and release fence. On a GPU the fence waits for this thread's outstanding
  /// stores, so one thread of a group should call it, not all.
  template <Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN void fence() {
    arch::fence_acq_rel<kScope>();
  }

  /// Executes a sequentially consistent fence. If two threads each store, fence and load what the
  /// other stores, at least one of them sees the other's store.
  template <Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN void fence_seq_cst() {
    arch::fence_seq_cst<kScope>();
  }

  /// Pauses a polling thread between two polls: `pause` on a CPU, nothing on a GPU. Orders no
  /// memory.
  static ORIEL_DEVICE_FN void relax() { arch::relax(); }

  /// Returns nanoseconds of the local clock (globaltimer; CLOCK_MONOTONIC). Only differences on one
  /// machine are meaningful. Orders no memory.
  [[nodiscard]] static ORIEL_DEVICE_FN std::uint64_t clock_ns() { return arch::clock_ns(); }
};

/// Forces `value` to be computed here, not at its first use. A kernel can prepare values while it
/// waits for its predecessor. No effect on the host. Any thread; not blocking; accesses no memory.
template <class T>
ORIEL_DEVICE_FN void keep_in_register(T*& value) {
  arch::keep_in_register(value);
}
/// Forces a number to be computed here, as above for a pointer.
ORIEL_DEVICE_FN void keep_in_register(std::uint64_t& value) {
  arch::keep_in_register(value);
}

/// Waits until the kernels on which this kernel depends by programmatic launch have ended and their
/// writes are visible. Every CTA calls it before it accesses user memory, scratch memory or an
/// epoch. A kernel without such a dependence returns at once, as does the host. Blocking; all
/// threads of a CTA.
ORIEL_DEVICE_FN void grid_dependency_wait() {
  arch::grid_dependency_wait();
}

/// Allows the next kernel to start while this one ends. This kernel's writes become visible to the
/// next kernel only through grid_dependency_wait. Not blocking; any thread.
ORIEL_DEVICE_FN void grid_launch_dependents() {
  arch::grid_launch_dependents();
}

}  // namespace oriel::device
