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

/// Memory accesses with an explicit order and scope, the same on GPUs and CPUs.
namespace oriel::device {

/// The policy that waits, packets, barriers and collective algorithms take as a template parameter,
/// so that a test may replace it (to count accesses, or to explore interleavings). This one is the
/// machine's.
/// All functions are local and thread-safe, never fail, and block only where they say so.
/// T is std::uint32_t, std::uint64_t, Pack or Pair; an address is aligned to the size of its T.
/// A 4- or 8-byte access is indivisible; Pack and Pair are so per element only (see access.hpp).
/// On a GPU the address is one of global memory.
struct Memory {
  template <class T>
  static constexpr bool kIsWord =
      std::is_same_v<T, std::uint32_t> || std::is_same_v<T, std::uint64_t>;
  template <class T>
  static constexpr bool kIsAccessible =
      kIsWord<T> || std::is_same_v<T, Pack> || std::is_same_v<T, Pair>;

  /// Order: weak, relaxed or acquire. An acquire makes visible what came before the release whose
  /// value it read, to this thread and to those that synchronise with it afterwards.
  template <Order kOrder, Scope kScope = Scope::system, class T>
  [[nodiscard]] static ORIEL_DEVICE_FN T load(const T* address) {
    static_assert(kIsAccessible<T>);
    static_assert(kOrder == Order::weak || kOrder == Order::relaxed || kOrder == Order::acquire);
    return arch::load<kOrder, kScope>(address);
  }

  /// Order: weak, relaxed or release. A release covers this thread's earlier accesses and those of
  /// threads that it has synchronised with, as in "group.sync(), then one thread releases".
  template <Order kOrder, Scope kScope = Scope::system, class T>
  static ORIEL_DEVICE_FN void store(T* address, T value) {
    static_assert(kIsAccessible<T>);
    static_assert(kOrder == Order::weak || kOrder == Order::relaxed || kOrder == Order::release);
    arch::store<kOrder, kScope>(address, value);
  }

  /// A weak load of data that this thread reads once; it takes no room in the first-level cache.
  template <class T>
  [[nodiscard]] static ORIEL_DEVICE_FN T load_streaming(const T* address) {
    static_assert(kIsAccessible<T>);
    return arch::load_streaming(address);
  }

  /// As load_streaming, through the GPU's non-coherent path. Only for memory that nobody, this
  /// thread included, writes while the kernel runs: not for in-place calls, not for peers' data.
  template <class T>
  [[nodiscard]] static ORIEL_DEVICE_FN T load_read_only(const T* address) {
    static_assert(kIsAccessible<T>);
    return arch::load_read_only(address);
  }

  /// A weak store of data that this thread does not read again.
  template <class T>
  static ORIEL_DEVICE_FN void store_streaming(T* address, T value) {
    static_assert(kIsAccessible<T>);
    arch::store_streaming(address, value);
  }

  /// Adds modulo 2^32 or 2^64 and returns the old value. Order: relaxed, acquire, release, acq_rel.
  /// On a GPU not for pinned host memory: the bus to the host may have no atomics.
  template <Order kOrder, Scope kScope = Scope::system, class T>
  static ORIEL_DEVICE_FN T fetch_add(T* address, T value) {
    static_assert(kIsWord<T> && kOrder != Order::weak);
    return arch::fetch_add<kOrder, kScope>(address, value);
  }

  /// As fetch_add without the old value, hence without the round trip. Order: relaxed or release.
  template <Order kOrder, Scope kScope = Scope::system, class T>
  static ORIEL_DEVICE_FN void reduce_add(T* address, T value) {
    static_assert(kIsWord<T> && (kOrder == Order::relaxed || kOrder == Order::release));
    arch::reduce_add<kOrder, kScope>(address, value);
  }

  /// Stores the larger of both and returns the old value. Order: relaxed or acq_rel; on a GPU not
  /// for pinned host memory.
  template <Order kOrder, Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN std::uint64_t fetch_max(std::uint64_t* address, std::uint64_t value) {
    static_assert(kOrder == Order::relaxed || kOrder == Order::acq_rel);
    return arch::fetch_max<kOrder, kScope>(address, value);
  }

  /// Sets bits and returns the old value, in order acq_rel; on a GPU not for pinned host memory.
  template <Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN std::uint64_t fetch_or(std::uint64_t* address, std::uint64_t bits) {
    return arch::fetch_or<kScope>(address, bits);
  }

  /// Stores a value and returns the old one, in order acq_rel; on a GPU not for pinned host memory.
  template <Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN std::uint64_t exchange(std::uint64_t* address, std::uint64_t value) {
    return arch::exchange<kScope>(address, value);
  }

  /// Stores `value` where `expected` is found and returns what was found. Order: relaxed,
  /// acquire or acq_rel; on a GPU not for pinned host memory.
  template <Order kOrder, Scope kScope = Scope::system, class T>
  static ORIEL_DEVICE_FN T compare_swap(T* address, T expected, T value) {
    static_assert(kIsWord<T> && (kOrder == Order::relaxed || kOrder == Order::acquire ||
                                 kOrder == Order::acq_rel));
    return arch::compare_swap<kOrder, kScope>(address, expected, value);
  }

  /// Acquire and release fence. On a GPU it waits for this thread's outstanding stores: one thread
  /// of a group, not all of them.
  template <Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN void fence() {
    arch::fence_acq_rel<kScope>();
  }

  /// Sequentially consistent fence: of two threads that each store, fence and load
  /// what the other stores, one sees the other's store.
  template <Scope kScope = Scope::system>
  static ORIEL_DEVICE_FN void fence_seq_cst() {
    arch::fence_seq_cst<kScope>();
  }

  /// What a polling thread does between two polls: `pause` on a CPU, nothing on a GPU.
  static ORIEL_DEVICE_FN void relax() { arch::relax(); }

  /// Nanoseconds of the local clock (globaltimer; CLOCK_MONOTONIC): differences only, one machine
  /// only.
  [[nodiscard]] static ORIEL_DEVICE_FN std::uint64_t clock_ns() { return arch::clock_ns(); }
};

/// Has `value` computed here and not later, where it is first used: for what a kernel can get ready
/// while it waits for its predecessor. No effect on the host.
template <class T>
ORIEL_DEVICE_FN void keep_in_register(T*& value) {
  arch::keep_in_register(value);
}
ORIEL_DEVICE_FN void keep_in_register(std::uint64_t& value) {
  arch::keep_in_register(value);
}

/// Waits until the kernels that this one depends on by programmatic launch have ended and their
/// writes are visible. Every CTA calls it before it touches user memory, scratch or an epoch; a
/// kernel without such dependence passes at once, as does the host. Blocking, all threads of a CTA.
ORIEL_DEVICE_FN void grid_dependency_wait() {
  arch::grid_dependency_wait();
}

/// Allows the next kernel to be launched while this one ends. Its writes become visible to that
/// kernel only through grid_dependency_wait. Not blocking; any thread.
ORIEL_DEVICE_FN void grid_launch_dependents() {
  arch::grid_launch_dependents();
}

}  // namespace oriel::device
