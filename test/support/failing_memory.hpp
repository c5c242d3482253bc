// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Simulates running out of memory. failing_memory.cpp replaces operator new for the whole program,
/// so that a test can make the k-th allocation fail.
namespace oriel::test {

/// Selects the threads whose allocations count. New threads are those started after the
/// FailingMemory, marked threads those started after mark_new_threads(). (The monitor's thread
/// allocates beside them, and may be older.)
enum class Whose : std::uint8_t { callers, callers_and_new_threads, marked_threads };

/// Marks the threads of this process that are started from now on.
void mark_new_threads();

/// Makes `burst` allocations in a row fail, from the k-th on, counted from 0, until destroyed. Use
/// one at a time in a process.
class FailingMemory {
 public:
  explicit FailingMemory(long k, Whose whose = Whose::callers_and_new_threads, long burst = 1);
  ~FailingMemory();
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;

  /// Returns true if the k-th allocation has been reached.
  static bool hit();
};

/// Runs `call` with the k-th allocation failing. Returns true if `call` has made as many
/// allocations.
template <class Call>
bool with_failure(long k, const Call& call, Whose whose = Whose::callers_and_new_threads) {
  const FailingMemory failing(k, whose);
  call();
  return FailingMemory::hit();
}

}  // namespace oriel::test
