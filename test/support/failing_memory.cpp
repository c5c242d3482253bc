// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/failing_memory.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>
#include <thread>

#include <sys/types.h>
#include <unistd.h>

namespace {

std::atomic<bool> armed{false};
/// Number of allocations before the first that fails; negative once this one has been reached.
std::atomic<long> left{0};
std::atomic<long> in_a_row{1};
std::atomic<pid_t> newest{0};
std::atomic<pid_t> newest_unmarked{std::numeric_limits<pid_t>::max()};
thread_local bool is_caller = false;

bool fails() {
  if (!armed || (!is_caller && ::gettid() <= newest)) return false;
  const long place = left.fetch_sub(1);
  return place <= 0 && place > -in_a_row;
}

void* allocate(std::size_t bytes) {
  if (fails()) throw std::bad_alloc();
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return allocate(bytes);
}
void* operator new[](std::size_t bytes) {
  return allocate(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return fails() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept {
  return ::operator new(bytes, tag);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace oriel::test {

void mark_new_threads() {
  std::thread([] { newest_unmarked = ::gettid(); }).join();
}

FailingMemory::FailingMemory(long k, Whose whose, long burst) {
  newest = std::numeric_limits<pid_t>::max();
  if (whose == Whose::callers_and_new_threads) {
    std::thread([] { newest = ::gettid(); }).join();
  }
  if (whose == Whose::marked_threads) newest = newest_unmarked.load();
  is_caller = whose != Whose::marked_threads;
  in_a_row = burst;
  left = k;
  armed = true;
}

FailingMemory::~FailingMemory() {
  armed = false;
  is_caller = false;
}

bool FailingMemory::hit() {
  return left < 0;
}

}  // namespace oriel::test
