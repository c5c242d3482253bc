// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/config.hpp"

/// PTX instructions used by bulk.cuh, one wrapper each. sm_90 and newer.
#if ORIEL_DEVICE_CODE && __CUDA_ARCH__ >= 900
namespace oriel::device::arch::ptx {

ORIEL_DEVICE_FN std::uint32_t shared(const void* address) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(address));
}

ORIEL_DEVICE_FN void mbarrier_init(std::uint64_t* barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(barrier)), "r"(arrivals)
               : "memory");
}

ORIEL_DEVICE_FN void mbarrier_invalidate(std::uint64_t* barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared(barrier)) : "memory");
}

ORIEL_DEVICE_FN void mbarrier_arrive_expect_tx(std::uint64_t* barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(barrier)),
               "r"(bytes)
               : "memory");
}

// Uses test_wait instead of try_wait, because try_wait may suspend the thread and the poll must
// stay short.
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

ORIEL_DEVICE_FN void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

ORIEL_DEVICE_FN void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

ORIEL_DEVICE_FN void bulk_global_to_shared(void* to, const void* from, std::uint32_t bytes,
                                           std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared(to)),
      "l"(static_cast<std::uint64_t>(__cvta_generic_to_global(from))), "r"(bytes),
      "r"(shared(barrier))
      : "memory");
}

ORIEL_DEVICE_FN void bulk_shared_to_global(void* to, const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   static_cast<std::uint64_t>(__cvta_generic_to_global(to))),
               "r"(shared(from)), "r"(bytes)
               : "memory");
}

ORIEL_DEVICE_FN void bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <int kPending>
ORIEL_DEVICE_FN void bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

template <int kPending>
ORIEL_DEVICE_FN void bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

}  // namespace oriel::device::arch::ptx
#endif
