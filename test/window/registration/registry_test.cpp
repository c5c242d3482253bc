// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/registry.hpp"

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <dlfcn.h>
#include <pthread.h>

#include "support/sanitized.hpp"
#include "support/seed.hpp"

// A sanitizer replaces these functions itself, so that this test cannot.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define ORIEL_TEST_COUNTS_CALLS 1
#endif

// Counts allocations and mutex locks of this thread by replacing operator new and
// pthread_mutex_lock.
namespace {
thread_local long allocations = 0;
thread_local long locks = 0;
}  // namespace

#ifdef ORIEL_TEST_COUNTS_CALLS
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* made = std::malloc(bytes > 0 ? bytes : 1)) return made;
  throw std::bad_alloc();
}
void operator delete(void* pointer) noexcept {
  std::free(pointer);
}
void operator delete(void* pointer, std::size_t) noexcept {
  std::free(pointer);
}

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  using Lock = int (*)(pthread_mutex_t*);
  static std::atomic<Lock> real{nullptr};  // dynamic initialization could lock a mutex
  if (real == nullptr) real = reinterpret_cast<Lock>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  ++locks;
  return real.load()(mutex);
}
#endif

namespace oriel::window {
namespace {

std::byte* at(std::uintptr_t address) {
  return reinterpret_cast<std::byte*>(address);
}

RegisteredWindow window(std::uintptr_t begin, std::size_t bytes, std::uint64_t serial) {
  RegisteredWindow made;
  made.user = at(begin);
  made.bytes = bytes;
  made.serial = serial;
  made.slot_offset = serial * 4096;
  return made;
}

void add(Registry& registry, const RegisteredWindow& made) {
  registry.insert({&made, 1});
}

/// Returns the serial of the window found, or 0.
std::uint64_t found(const Registry& registry, std::uintptr_t begin, std::size_t bytes) {
  const auto window = registry.find(at(begin), bytes);
  return window ? window->serial : 0;
}

/// Returns the same serial by comparing every window.
std::uint64_t brute_force(const std::vector<RegisteredWindow>& windows, std::uintptr_t begin,
                          std::size_t bytes) {
  const RegisteredWindow* best = nullptr;
  for (const auto& one : windows) {
    if (one.user > at(begin) || one.user + one.bytes < at(begin + bytes)) continue;
    if (best == nullptr || one.user > best->user ||
        (one.user == best->user &&
         (one.bytes < best->bytes || (one.bytes == best->bytes && one.serial > best->serial)))) {
      best = &one;
    }
  }
  return best == nullptr ? 0 : best->serial;
}

}  // namespace

TEST_CASE("ranges at the end of the address space do not wrap", "[req:1.18]") {
  Registry registry;
  CHECK(found(registry, 0x1000, 1) == 0);
  add(registry, window(0x1000, 0x1000, 1));
  CHECK(registry.find(at(0x1800), ~std::size_t{0}) == std::nullopt);
  CHECK(registry.find(at(~std::uintptr_t{0}), 2) == std::nullopt);
}

TEST_CASE("a lookup allocates nothing and takes no lock", "[req:1.18]") {
  Registry registry;
  long allocated = allocations;
  long locked = locks;
  for (std::uint64_t i = 1; i <= 100; ++i) add(registry, window(0x1000 * i, 0x3000, i));
#ifdef ORIEL_TEST_COUNTS_CALLS  // checks that the counters work
  CHECK(allocations - allocated >= 100);
  CHECK(locks - locked >= 100);
#endif
  allocated = allocations;
  locked = locks;
  std::uint64_t hits = 0;
  for (std::uintptr_t address = 0; address < 0x80000; address += 0x100) {
    hits += registry.find(at(address), 0x100).has_value() ? 1 : 0;
  }
  allocated = allocations - allocated;
  locked = locks - locked;
  CHECK(allocated == 0);
  CHECK(locked == 0);
  CHECK(hits == 102 * 0x10);
}

TEST_CASE("a removal allocates nothing, so that it cannot fail", "[req:1.18][req:1.38]") {
  Registry registry;
  CHECK_FALSE(registry.erase(1));
  for (std::uint64_t i = 1; i <= 100; ++i) add(registry, window(0x1000 * i, 0x1000, i));
  long allocated = allocations;
  std::uint64_t removed = 0;
  for (std::uint64_t i = 100; i >= 1; --i) removed += registry.erase(i) ? 1 : 0;
  allocated = allocations - allocated;
  CHECK(allocated == 0);
  CHECK(removed == 100);
  CHECK(registry.find(at(0x1000), 1) == std::nullopt);
}

TEST_CASE("random windows are found as by brute force", "[req:1.18]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937 random(seed);
  for (int round = 0; round < test::repeats(40, 5); ++round) {
    Registry registry;
    std::vector<RegisteredWindow> all;
    std::uint64_t serial = 0;
    const std::uint32_t span = 16U << (random() % 8);  // few places: many equal and nested windows
    for (int step = 0; step < 150; ++step) {
      if (!all.empty() && random() % 3 == 0) {
        const auto victim = all.begin() + static_cast<std::ptrdiff_t>(random() % all.size());
        REQUIRE(registry.erase(victim->serial));
        all.erase(victim);
      } else {
        const auto made = window(0x1000 + random() % span, 1 + random() % span, ++serial);
        add(registry, made);
        all.push_back(made);
      }
      for (int probe = 0; probe < 20; ++probe) {
        const std::uintptr_t begin = 0x0ff8 + random() % (span + 16);
        const std::size_t bytes = random() % (span / 2);
        REQUIRE(found(registry, begin, bytes) == brute_force(all, begin, bytes));
      }
    }
  }
}

TEST_CASE("lookups run while windows come and go", "[req:1.18]") {
  Registry registry;
  add(registry, window(0x1000, 0x100000, 1));  // stays registered
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<std::uint64_t> lookups{0};
  std::vector<std::jthread> readers;
  for (unsigned id = 0; id < 3; ++id) {
    readers.emplace_back([&, id] {
      std::mt19937 random(id);
      while (!stop.load(std::memory_order_relaxed)) {
        const std::uintptr_t begin = 0x1000 + random() % 0xff000;
        const auto one = registry.find(at(begin), 16);
        if (!one || one->user > at(begin) || one->slot_offset != one->serial * 4096) ++wrong;
        lookups.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  std::vector<std::jthread> writers;
  for (unsigned id = 0; id < 2; ++id) {
    writers.emplace_back([&, id] {
      std::mt19937 random(100 + id);
      for (std::uint64_t i = 0; i < test::repeats(1000u, 4u); ++i) {
        const std::uint64_t serial = 2 + 2 * i + id;
        add(registry, window(0x1000 + random() % 0xe0000, 1 + random() % 0x1000, serial));
        if (i % 2 == 1) registry.erase(serial - 2);
        if (random() % 4 != 0) registry.erase(serial);
      }
    });
  }
  writers.clear();
  while (lookups.load() < 1000) std::this_thread::yield();
  stop = true;
  readers.clear();
  CHECK(wrong == 0);
}

}  // namespace oriel::window
