// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/wait.hpp"

namespace oriel::kernels {
struct GridBarrier;
}

namespace oriel::test {

inline constexpr std::uint32_t kNoCta = 0xffffffffu;

/// Arguments of a kernel whose CTAs meet twice in a grid barrier. The kernel must be able to access
/// all pointers.
struct GridJob {
  kernels::GridBarrier* barrier = nullptr;
  device::WaitControl wait;
  std::uint32_t absent = kNoCta;  ///< this CTA returns after `barriers` barriers; kNoCta: none does
  std::uint32_t barriers = 0;     ///< 0 or 1
  std::uint32_t* met = nullptr;   ///< by CTA: 3 if all met, 1 if its wait was given up
  std::uint32_t* leads = nullptr;  ///< by CTA: number of leading threads after the first barrier
};

/// Launches the kernel without waiting; returns a cudaError_t as int. `stream` is a cudaStream_t.
int launch_grid(const GridJob& job, std::uint32_t ctas, void* stream);

/// Returns the CTAs of the kernel that a multiprocessor runs at once; 0 if CUDA fails.
int ctas_per_multiprocessor();

}  // namespace oriel::test
