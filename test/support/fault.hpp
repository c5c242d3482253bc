// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <string>

#include "base/system_table.hpp"

/// Makes the k-th system or driver call fail, for tests that walk through every k.
namespace oriel::test {

/// Which call fails, and with what. Counts the calls that it is asked about.
struct FaultPlan {
  long fail_at = 0;  ///< the first call is 1; 0 lets all pass and counts only
  int status = 0;    ///< an errno value, or a CUresult
  std::atomic<long> calls{0};
  std::atomic<const char*> failed{nullptr};  ///< the name of the call that was made to fail

  bool hit() const { return failed.load() != nullptr; }
  /// Counts a call; true for the one that must fail.
  bool next(const char* name);
};

enum class Reach {
  thread,   ///< calls of the thread that made the object
  process,  ///< calls of all threads that have no plan of their own
};

/// While it lives, system calls go through `plan`. Only one process-wide object at a time. Calls
/// that give something up (close, munmap) take effect before they report failure, as on Linux.
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
