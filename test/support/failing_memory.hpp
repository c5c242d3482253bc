// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Memory that runs out: failing_memory.cpp has an operator new for the whole program, whose k-th
/// call a test can make fail.
namespace oriel::test {

/// The allocations that count: those of the thread that makes the call, and of threads that are
/// started later. (The monitor's runs beside them, and may be older.)
enum class Whose : std::uint8_t { callers, callers_and_new_threads, marked_threads };

/// Marks the threads of this process that are started from now on.
void mark_new_threads();

/// Until destroyed, `burst` allocations in a row fail from the k-th on, counted from 0. One at a
/// time in a process.
class FailingMemory {
 public:
  explicit FailingMemory(long k, Whose whose = Whose::callers_and_new_threads, long burst = 1);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  /// Whether there have been as many allocations.
  static bool hit();
};

/// Runs `call` with the k-th allocation failing; whether there were as many.
template <class Call>
bool with_failure(long k, const Call& call, Whose whose = Whose::callers_and_new_threads) {
  const FailingMemory failing(k, whose);
  call();
  return FailingMemory::hit();
}

}  // namespace oriel::test
