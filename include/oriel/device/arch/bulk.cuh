// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"

/// PTX instructions used by bulk.cuh, one wrapper each. sm_90 and newer. Arguments are not checked.
/// An mbarrier lies in the CTA's shared memory. Addresses and sizes of copies are multiples of 16
/// bytes. Unless its comment says otherwise, a function does not block and orders no memory, and
/// one thread calls it.
///
/// Example: a thread fills shared memory for the first time and waits for the bytes.
/// ```cpp
/// #if ORIEL_DEVICE_CODE && __CUDA_ARCH__ >= 900
/// __device__ void load(void* shared, const void* global, std::uint32_t bytes,
///                      std::uint64_t* barrier) {
///   namespace ptx = oriel::device::arch::ptx;
///   ptx::mbarrier_arrive_expect_tx(barrier, bytes);
///   ptx::bulk_global_to_shared(shared, global, bytes, barrier);
///   while (!ptx::mbarrier_test_wait_parity(barrier, 0)) continue;
/// }
/// #endif
/// ```
#if ORIEL_DEVICE_CODE && __CUDA_ARCH__ >= 900
namespace oriel::device::arch::ptx {

/// Returns the shared-memory address of a generic pointer, as the instructions take it.
ORIEL_DEVICE_FN std::uint32_t shared(const void* address) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
}

/// Initialises an mbarrier for `arrivals` arrivals in each phase.
ORIEL_DEVICE_FN void mbarrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(barrier)), "r"(arrivals)
               : "memory");
}

/// Ends the lifetime of an mbarrier, so that its memory may be reused.
ORIEL_DEVICE_FN void mbarrier_invalidate(std::uint64_t* barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared(barrier)) : "memory");
}

/// Arrives at an mbarrier, and adds `bytes` to the bytes that its phase waits for. Release, CTA
/// scope.
ORIEL_DEVICE_FN void mbarrier_arrive_expect_tx(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(barrier)),
               "r"(bytes)
               : "memory");
}

/// Returns whether the phase of this parity has ended. Acquire, CTA scope; not blocking. Uses
/// test_wait instead of try_wait, because try_wait may suspend the thread and the poll must stay
/// short.
ORIEL_DEVICE_FN bool mbarrier_test_wait_parity(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(shared(barrier)), "r"(parity)
      : "memory");
  return done != 0;
}

/// Releases earlier mbarrier_init calls of this thread, at cluster scope.
ORIEL_DEVICE_FN void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Orders this thread's earlier ordinary accesses before bulk copies that start later.
ORIEL_DEVICE_FN void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

/// Starts a copy of `bytes` bytes from `from` in global memory to `to` in shared memory. The
/// arrived bytes count at `barrier`. Not blocking.
ORIEL_DEVICE_FN void bulk_global_to_shared(void* to, const void* from, std::uint32_t bytes,
                                           std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared(to)),
      "l"(static_cast<std::uint64_t>(__cvta_generic_to_global(from))), "r"(bytes),
      "r"(shared(barrier))
      : "memory");
}

/// Starts a copy of `bytes` bytes from `from` in shared memory to `to` in global memory, in the
/// thread's current bulk group. Not blocking.
ORIEL_DEVICE_FN void bulk_shared_to_global(void* to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   static_cast<std::uint64_t>(__cvta_generic_to_global(to))),
               "r"(shared(from)), "r"(bytes)
               : "memory");
}

/// Closes the thread's current bulk group.
ORIEL_DEVICE_FN void bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Waits until at most kPending of the thread's latest bulk groups are incomplete. Blocking. The
/// writes of the other groups are then visible to the thread.
template <int kPending>
ORIEL_DEVICE_FN void bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Waits until at most kPending of the thread's latest bulk groups still read their sources.
/// Blocking.
template <int kPending>
ORIEL_DEVICE_FN void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace oriel::device::arch::ptx
#endif
