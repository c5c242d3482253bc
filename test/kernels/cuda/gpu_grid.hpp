// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace oriel::kernels {
struct GridBarrier;
}

namespace oriel::test {

/// The CTAs of a kernel meet twice, without one of them. Memory is such as the kernel can reach.
struct GridJob {
  kernels::GridBarrier* barrier = nullptr;
  const std::uint32_t* abort = nullptr;
  std::uint32_t absent = 0;        ///< this CTA does not come
  std::uint32_t* met = nullptr;    ///< by CTA: 3 if all have met twice, 1 if it gave up
  std::uint32_t* leads = nullptr;  ///< by CTA: threads that lead after the first meeting
};
inline constexpr std::uint32_t kNoCta = 0xffffffffu;

/// Does not wait. A cudaError_t as int; `stream` is a cudaStream_t.
int launch_grid(const GridJob& job, std::uint32_t ctas, void* stream);

}  // namespace oriel::test
