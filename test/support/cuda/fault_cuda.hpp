// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/cuda_table.hpp"
#include "support/fault.hpp"

namespace oriel::test {

/// Puts hooks over the table in force (a fake, or the driver), which pass every call on unless a
/// ScopedCudaFaults says otherwise; they are gone when it is destroyed. One at a time.
class CudaFaultHooks {
 public:
  CudaFaultHooks();
  ~CudaFaultHooks();
  CudaFaultHooks(const CudaFaultHooks&) = delete;
  CudaFaultHooks& operator=(const CudaFaultHooks&) = delete;

 private:
  ScopedCudaTable scoped_;
};

/// While it lives, driver calls go through `plan`; needs CudaFaultHooks. One process-wide object at
/// a time. Calls that give something up take effect before they report failure, as the driver's do
/// when they report an earlier asynchronous error.
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
