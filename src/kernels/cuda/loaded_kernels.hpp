// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include <cuda.h>

#include "oriel/error.hpp"
#include "oriel/types.hpp"

#include "kernels/plan/collective.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels {

/// The calls of the CUDA runtime that load a kernel, which is known to the runtime alone. A test
/// replaces them.
struct KernelLoader {
  int (*load)(const void* kernel);  ///< returns a cudaError_t, as does the other one
  int (*find)(CUfunction* function, const void* kernel);
};

/// Puts `loader` in force for the process until destroyed. For tests; it must outlive this.
class ScopedKernelLoader {
 public:
  explicit ScopedKernelLoader(const KernelLoader& loader);
  ~ScopedKernelLoader();
  ScopedKernelLoader(const ScopedKernelLoader&) = delete;
  ScopedKernelLoader& operator=(const ScopedKernelLoader&) = delete;

 private:
  const KernelLoader* previous_;
};

/// A kernel: its place among all, and what the CUDA runtime knows it by.
struct KernelEntry {
  std::size_t number = 0;
  const void* symbol = nullptr;
};

/// The numbers of kernels begin with the all-reduces of each type, those among teams, exchanges,
/// and copying streams.
inline constexpr std::size_t kVariantsOfType = kGpuAlgorithmCount * 3 * kRankVariants;
inline constexpr std::size_t kFirstHierarchy = kDataTypeCount * kVariantsOfType;
inline constexpr std::size_t kFirstExchange = kFirstHierarchy + kDataTypeCount;
inline constexpr std::size_t kFirstCopyStream = kFirstExchange + 3;
inline constexpr std::size_t kKernelCount = kFirstCopyStream + kCollectiveCount;

/// The kernels of one context, for the launches of all communicators there. Each is loaded once,
/// which a launch would do otherwise (CUDA's lazy loading) and may have to wait for other kernels.
/// Thread-safe: a kernel that has been loaded is found without a lock or a driver call.
class LoadedKernels {
 public:
  /// `context` is the primary context of a device and must outlive this.
  explicit LoadedKernels(CUcontext context) : context_(context) {}

  Result<CUfunction> get(KernelEntry kernel) {
    CUfunction const found = functions_[kernel.number].load(std::memory_order_acquire);
    if (found != nullptr) return found;
    return load(kernel);
  }

 private:
  Result<CUfunction> load(KernelEntry kernel);

  CUcontext context_;
  // Threads that load one kernel at a time are given the same function.
  std::array<std::atomic<CUfunction>, kKernelCount> functions_{};
};

}  // namespace oriel::kernels
