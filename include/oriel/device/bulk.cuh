// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/arch/bulk.cuh"
#include "oriel/device/config.hpp"

/// Bulk copies between global memory (own or a peer's) and shared memory. One thread starts them
/// and the copy hardware executes them. GPU only, sm_90 and newer. A kernel for several
/// architectures guards their use with `#if __CUDA_ARCH__ >= 900`. Addresses and sizes are
/// multiples of 16 bytes. A copy can fail only by a GPU fault.
///
/// Example: fills a buffer in shared memory for the k-th time, and waits for the bytes.
/// ```cpp
/// #include "oriel/device/wait.hpp"
/// #if __CUDA_ARCH__ >= 900
/// __device__ bool fill(void* shared, const void* from, oriel::device::BulkBarrier& barrier,
///                      std::uint32_t k, const oriel::device::WaitControl& control) {
///   if (threadIdx.x == 0) barrier.expect(4096);
///   if (threadIdx.x == 0) oriel::device::bulk_load(shared, from, 4096, barrier);
///   const auto outcome =
///       oriel::device::wait_until([&] { return barrier.arrived(k % 2); }, control, {});
///   return outcome == oriel::device::WaitOutcome::ready;
/// }
/// #endif
/// ```
/// @file
#if ORIEL_DEVICE_CODE && __CUDA_ARCH__ >= 900
namespace oriel::device {

/// Counts the bytes that have arrived in one shared-memory buffer. Lies in shared memory. One
/// thread calls init(), then every thread of the CTA calls Cta::sync().
/// For the k-th fill (k = 0, 1, ...) one thread calls expect() and starts copies of that many bytes
/// in total. Readers of the buffer first wait until arrived(k % 2), as the condition of wait_until.
/// Before the next fill all readers have called group.sync().
struct BulkBarrier {
  std::uint64_t word;  ///< PTX's mbarrier object; only the functions below access it

  /// Initialises the barrier, before any other use. One thread; not blocking. Its fence releases
  /// the initialisation at cluster scope. The CTA's sync then makes it visible to the other
  /// threads.
  ORIEL_DEVICE_FN void init() {
    arch::ptx::mbarrier_init(&word, 1);
    arch::ptx::fence_mbarrier_init();
  }
  /// Ends the barrier's lifetime, so its memory may be reused. One thread, after all waits. Not
  /// blocking; orders no memory.
  ORIEL_DEVICE_FN void invalidate() { arch::ptx::mbarrier_invalidate(&word); }
  /// Announces a fill of `bytes` bytes, before its copies are started. One thread; not blocking.
  /// Release within the CTA: earlier accesses of this thread happen before arrived() returns true
  /// elsewhere.
  ORIEL_DEVICE_FN void expect(std::uint32_t bytes) {
    arch::ptx::mbarrier_arrive_expect_tx(&word, bytes);
  }
  /// Returns true if the bytes of the fill with this parity are visible to this thread. Any thread;
  /// not blocking.
  [[nodiscard]] ORIEL_DEVICE_FN bool arrived(std::uint32_t parity) {
    return arch::ptx::mbarrier_test_wait_parity(&word, parity);
  }
};

/// Starts a copy of `bytes` bytes from `global` to `shared`, a buffer of at least that size in
/// shared memory. `barrier` counts the bytes that have arrived. One thread; not blocking. A
/// group.sync() orders earlier reads and writes of the buffer by the CTA's threads. After writes,
/// bulk_fence() is needed as well.
ORIEL_DEVICE_FN void bulk_load(void* shared, const void* global, std::uint32_t bytes,
                               BulkBarrier& barrier) {
  arch::ptx::bulk_global_to_shared(shared, global, bytes, &barrier.word);
}

/// Makes this thread's earlier writes of shared memory visible to bulk copies started afterwards.
/// Not blocking. Each writer calls it, then group.sync(), then one thread starts the copy.
ORIEL_DEVICE_FN void bulk_fence() {
  arch::ptx::fence_proxy_async();
}

/// Starts a copy of `bytes` bytes from `shared` to `global`. One thread; not blocking. Orders no
/// memory: writers of `shared` call bulk_fence(), then group.sync(), before. bulk_commit() then
/// closes its group.
ORIEL_DEVICE_FN void bulk_store(void* global, const void* shared, std::uint32_t bytes) {
  arch::ptx::bulk_shared_to_global(global, shared, bytes);
}
/// Closes the group of copies that this thread has started by bulk_store() since its last
/// bulk_commit(). One thread; not blocking; orders no memory.
ORIEL_DEVICE_FN void bulk_commit() {
  arch::ptx::bulk_commit_group();
}

/// Waits until at most kPending of this thread's latest groups still read shared memory. The shared
/// memory of the other groups may then be overwritten. Blocking; one thread. Orders no memory but
/// these reads.
template <int kPending>
ORIEL_DEVICE_FN void bulk_wait_read() {
  arch::ptx::bulk_wait_group_read<kPending>();
}
/// Waits until at most kPending of this thread's latest groups are incomplete. The bytes of the
/// other groups are written and visible to this thread, whose release store then publishes them.
/// Blocking; one thread.
template <int kPending>
ORIEL_DEVICE_FN void bulk_wait() {
  arch::ptx::bulk_wait_group<kPending>();
}

}  // namespace oriel::device
#endif
