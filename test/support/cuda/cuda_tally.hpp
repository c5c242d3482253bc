// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/cuda_table.hpp"

namespace oriel::test {

/// What the calls of this process through Oriel's table have taken from the driver and not given
/// back.
struct CudaHoldings {
  long contexts = 0;  ///< references to primary contexts
  long handles = 0;   ///< references to physical memory
  long reservations = 0;
  long mappings = 0;
  long buffers = 0;  ///< of cuMemAlloc and cuMemHostAlloc
  long streams = 0;
  long events = 0;

  bool operator==(const CudaHoldings&) const = default;
  /// No more of anything than `other`.
  bool within(const CudaHoldings& other) const;
  std::string text() const;
};

/// Counts on top of the table in force (a fake, or the driver) until destroyed. Put it under
/// CudaFaultHooks, which make calls fail that then are not counted. One at a time. Thread-safe.
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
