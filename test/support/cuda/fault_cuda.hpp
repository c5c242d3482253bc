// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/cuda_table.hpp"
#include "support/fault.hpp"

namespace oriel::test {

/// Puts hooks over the table in force (a fake, or the driver) until destroyed. The hooks pass every
/// call on unless a ScopedCudaFaults makes it fail. Use one at a time.
class CudaFaultHooks {
 public:
  CudaFaultHooks();
  ~CudaFaultHooks();
  CudaFaultHooks(const CudaFaultHooks&) = delete;
  CudaFaultHooks& operator=(const CudaFaultHooks&) = delete;

 private:
  ScopedCudaTable scoped_;
};

/// Passes driver calls through `plan` until destroyed; needs CudaFaultHooks. Only one process-wide
/// object may exist at a time. Calls that release something take effect before they report failure,
/// as the driver's do when they report an earlier asynchronous error.
class ScopedCudaFaults {
 public:
  explicit ScopedCudaFaults(FaultPlan& plan, Reach reach = Reach::thread);
  ~ScopedCudaFaults();
  ScopedCudaFaults(const ScopedCudaFaults&) = delete;
  ScopedCudaFaults& operator=(const ScopedCudaFaults&) = delete;

 private:
  Reach reach_;
};

}  // namespace oriel::test
