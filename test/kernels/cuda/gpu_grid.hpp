// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace oriel::kernels {
struct GridBarrier;
}

namespace oriel::test {

/// Arguments of a kernel whose CTAs, except `absent`, meet twice in a grid barrier. The kernel must
/// be able to access all pointers.
struct GridJob {
  kernels::GridBarrier* barrier = nullptr;
  const std::uint32_t* abort = nullptr;
  std::uint32_t absent = 0;        ///< this CTA returns before the barrier; kNoCta: none does
  std::uint32_t* met = nullptr;    ///< by CTA: 3 if all met, 1 if its wait was aborted
  std::uint32_t* leads = nullptr;  ///< by CTA: number of leading threads after the first barrier
};
inline constexpr std::uint32_t kNoCta = 0xffffffffu;

/// Launches the kernel without waiting; returns a cudaError_t as int. `stream` is a cudaStream_t.
int launch_grid(const GridJob& job, std::uint32_t ctas, void* stream);

}  // namespace oriel::test
