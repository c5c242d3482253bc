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
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::kernels {

/// Calls of the CUDA runtime that load a kernel and find its CUfunction. Only the runtime can map a
/// kernel symbol. A test replaces them.
struct KernelLoader {
  int (*load)(const void* kernel);  ///< returns a cudaError_t, like `find`
  int (*find)(CUfunction* function, const void* kernel);
};

/// Replaces the process's kernel loader by `loader` until destroyed. For tests. `loader` must
/// outlive this object.
class ScopedKernelLoader {
 public:
  explicit ScopedKernelLoader(const KernelLoader& loader);
  ~ScopedKernelLoader();
  ScopedKernelLoader(const ScopedKernelLoader&) = delete;
  ScopedKernelLoader& operator=(const ScopedKernelLoader&) = delete;

 private:
  const KernelLoader* previous_;
};

/// A kernel: its number among all kernels, and its symbol in the CUDA runtime.
struct KernelEntry {
  std::size_t number = 0;
  const void* symbol = nullptr;
};

/// Numbering of kernels: all-reduces by type, kernels among teams by type, exchanges by form,
/// copying streams by collective. Copies in lines are last, by collective, kind of line, unit and
/// ranks.
inline constexpr std::size_t kFamilies = 3;
inline constexpr std::size_t kVariantsOfType = kGpuAlgorithmCount * kFamilies * kRankVariants;
inline constexpr std::size_t kFirstHierarchy = kDataTypeCount * kVariantsOfType;
inline constexpr std::size_t kFirstExchange = kFirstHierarchy + kDataTypeCount;
inline constexpr std::size_t kFirstCopyStream = kFirstExchange + kExchangeForms;
inline constexpr std::size_t kFirstCopyLines = kFirstCopyStream + kCollectiveCount;
inline constexpr std::size_t kKernelCount = kFirstCopyLines + std::size_t{12} * kRankVariants;

/// Kernels of one context, shared by all communicators there. The first communicator loads them all
/// (load_kernels). Otherwise a launch would load its kernel (CUDA's lazy loading) and might wait
/// for other kernels. Thread-safe: a loaded kernel is found without a lock or a driver call.
class LoadedKernels {
 public:
  /// `context` is the primary context of a device and must outlive this object.
  explicit LoadedKernels(CUcontext context) : context_(context) {}

  Result<CUfunction> get(KernelEntry kernel) {
    CUfunction const found = functions_[kernel.number].load(std::memory_order_acquire);
    if (found != nullptr) return found;
    return load(kernel);
  }

 private:
  Result<CUfunction> load(KernelEntry kernel);

  CUcontext context_;
  // Threads that load one kernel concurrently store the same function.
  std::array<std::atomic<CUfunction>, kKernelCount> functions_{};
};

}  // namespace oriel::kernels
