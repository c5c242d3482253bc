// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/arch/bulk.cuh"
#include "oriel/device/config.hpp"

/// Bulk copies between global memory (own or a peer's) and shared memory, which one thread starts
/// and the copy hardware makes. GPU only, sm_90 and newer: a kernel for several architectures
/// guards their use with `#if __CUDA_ARCH__ >= 900`.
/// Addresses and sizes are multiples of 16 bytes. A copy can only fail by a fault of the GPU.
#if ORIEL_DEVICE_CODE && __CUDA_ARCH__ >= 900
namespace oriel::device {

/// Counts the bytes that have arrived in one shared-memory buffer. It lies in shared memory. One
/// thread calls init(), then every thread of the CTA passes Cta::sync().
/// For the k-th fill (k = 0, 1, ...): one thread calls expect() and starts copies of that many
/// bytes in total; threads that read the buffer first wait until arrived(k % 2), as the condition
/// of wait_until; before the next fill all of them have passed a group.sync().
struct BulkBarrier {
  std::uint64_t word;

  /// One thread, before any other use; not blocking. Its fence shows the barrier to the copy
  /// hardware, the CTA's sync shows it to the other threads.
  ORIEL_DEVICE_FN void init() {
    arch::ptx::mbarrier_init(&word, 1);
    arch::ptx::fence_mbarrier_init();
  }
  /// Ends the barrier's life, so that its memory may be used for something else. One thread, after
  /// all waits.
  ORIEL_DEVICE_FN void invalidate() { arch::ptx::mbarrier_invalidate(&word); }
  /// Announces a fill of `bytes`, before its copies are started. One thread, not blocking. Release
  /// among the CTA's threads: what this one did before comes before arrived() is true elsewhere.
  ORIEL_DEVICE_FN void expect(std::uint32_t bytes) {
    arch::ptx::mbarrier_arrive_expect_tx(&word, bytes);
  }
  /// Not blocking. True: the bytes of the fill with this parity are visible to this thread.
  [[nodiscard]] ORIEL_DEVICE_FN bool arrived(std::uint32_t parity) {
    return arch::ptx::mbarrier_test_wait_parity(&word, parity);
  }
};

/// Starts a copy into shared memory whose arrival `barrier` counts. One thread. What the CTA's
/// threads have themselves read from or written to the buffer before is ordered by a group.sync()
/// and, after writes, bulk_fence().
ORIEL_DEVICE_FN void bulk_load(void* shared, const void* global, std::uint32_t bytes,
                               BulkBarrier& barrier) {
  arch::ptx::bulk_global_to_shared(shared, global, bytes, &barrier.word);
}

/// Makes this thread's earlier writes of shared memory visible to the bulk copies that are started
/// after it: each writer calls it, then group.sync(), then one thread starts the copy.
ORIEL_DEVICE_FN void bulk_fence() {
  arch::ptx::fence_proxy_async();
}

/// Starts a copy out of shared memory. One thread; bulk_commit() closes the group of copies that it
/// has started since the last.
ORIEL_DEVICE_FN void bulk_store(void* global, const void* shared, std::uint32_t bytes) {
  arch::ptx::bulk_shared_to_global(global, shared, bytes);
}
ORIEL_DEVICE_FN void bulk_commit() {
  arch::ptx::bulk_commit_group();
}

/// Waits until at most kPending of this thread's latest groups still read shared memory, which may
/// then be overwritten. Blocking.
template <int kPending>
ORIEL_DEVICE_FN void bulk_wait_read() {
  arch::ptx::bulk_wait_group_read<kPending>();
}
/// Waits until at most kPending of this thread's latest groups are incomplete. The bytes of the
/// others are written and visible to this thread; a release store by it then publishes them.
template <int kPending>
ORIEL_DEVICE_FN void bulk_wait() {
  arch::ptx::bulk_wait_group<kPending>();
}

}  // namespace oriel::device
#endif
