// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include "base/system_table.hpp"

/// Makes the k-th system or driver call fail, for tests that try every k.
namespace oriel::test {

/// Selects the call that fails, and its error. Counts the calls that it is asked about.
struct FaultPlan {
  long fail_at = 0;  ///< the first call is 1; 0 lets all pass and counts only
  int status = 0;    ///< an errno value, or a CUresult
  std::atomic<long> calls{0};
  std::atomic<const char*> failed{nullptr};  ///< the name of the call that was made to fail

  bool hit() const { return failed.load() != nullptr; }
  /// Counts a call; returns true for the call that must fail.
  bool next(const char* name);
};

enum class Reach {
  thread,   ///< calls of the thread that made the object
  process,  ///< calls of all threads that have no plan of their own
};

/// Passes system calls through `plan` until destroyed. Only one process-wide object may exist at a
/// time. Calls that release something (close, munmap) take effect before they report failure, as on
/// Linux.
class ScopedSystemFaults {
 public:
  explicit ScopedSystemFaults(FaultPlan& plan, Reach reach = Reach::thread);
  ~ScopedSystemFaults();
  ScopedSystemFaults(const ScopedSystemFaults&) = delete;
  ScopedSystemFaults& operator=(const ScopedSystemFaults&) = delete;

 private:
  Reach reach_;
};

}  // namespace oriel::test
