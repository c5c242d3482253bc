// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/cuda_table.hpp"

namespace oriel::test {

/// Driver resources that this process has allocated through Oriel's table and not yet freed.
struct CudaHoldings {
  long contexts = 0;  ///< references to primary contexts
  long handles = 0;   ///< references to physical memory
  long reservations = 0;
  long mappings = 0;
  long buffers = 0;  ///< by cuMemAlloc and cuMemHostAlloc
  long streams = 0;
  long events = 0;

  bool operator==(const CudaHoldings&) const = default;
  /// Returns true if no count exceeds the count in `other`.
  bool within(const CudaHoldings& other) const;
  std::string text() const;
};

/// Counts calls on top of the table in force (a fake, or the driver) until destroyed. Create it
/// before CudaFaultHooks: calls that the hooks make fail are then counted only if they release
/// something. Use one at a time.
/// Thread-safe.
class CudaTally {
 public:
  CudaTally();
  ~CudaTally();
  CudaTally(const CudaTally&) = delete;
  CudaTally& operator=(const CudaTally&) = delete;

  CudaHoldings holdings() const;

 private:
  ScopedCudaTable scoped_;
};

}  // namespace oriel::test
