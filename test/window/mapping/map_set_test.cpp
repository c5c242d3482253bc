// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Rows H5 and H7 of the reference on queues: which allocations are mapped is exact after a failure
// at any of them, and mapping what is mapped only counts.
#include "window/mapping/map_set.hpp"

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

#include <catch2/catch.hpp>

#include "base/process_number.hpp"
#include "support/fault.hpp"
#include "support/process_state.hpp"
#include "window/memory/allocation_table.hpp"
#include "window/memory/memory_host.hpp"

namespace {

/// Of this thread: allocations that still succeed; below 0: all do.
thread_local long allocations_left = -1;

}  // namespace

// Memory that runs out on request.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc();
  if (allocations_left > 0) --allocations_left;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace oriel::window {
namespace {

constexpr std::size_t kPage = 4096;

/// Mappings of our shared memory, as the kernel lists them: one for each allocation and place.
std::size_t count_shared() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:oriel") != std::string::npos) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("host: after a failure at the k-th call exactly what the system mapped is on the books",
          "[H5]") {
  const test::ProcessState before = test::process_state();
  {
    MapSet set(host_memory(), -1, kPage);
    test::FaultPlan count;
    {
      auto mapping = set.make();
      const test::ScopedSystemFaults faults(count);
      REQUIRE(mapping->map_all().ok());
      CHECK(mapping->mapped_slots() == std::vector<int>{0, 1, 2});
    }
    REQUIRE(count.calls >= MapSet::kAllocations);
    const std::size_t unmapped = count_shared();
    int partial = 0;
    for (long k = 1; k <= count.calls; ++k) {
      INFO("call " << k << " of " << count.calls);
      auto mapping = set.make();
      test::FaultPlan plan;
      plan.fail_at = k;
      plan.status = ENOMEM;
      Status status;
      {
        const test::ScopedSystemFaults faults(plan);
        status = mapping->map_all();
      }
      REQUIRE(plan.hit());
      const std::size_t mapped = count_shared() - unmapped;
      set.check_books(*mapping, mapped);
      CHECK(status.ok() == (mapped == MapSet::kAllocations));  // advice may be refused
      if (mapped > 0 && mapped < MapSet::kAllocations) ++partial;
      mapping.reset();
      CHECK(set.space().mapped().empty());
      CHECK(count_shared() == unmapped);
    }
    CHECK(partial == MapSet::kAllocations - 1);
    // Nothing of it stands in the way of the next.
    auto again = set.make();
    CHECK(again->map_all().ok());
    set.check_books(*again, MapSet::kAllocations);
  }
  CHECK(test::process_state() == before);
}

TEST_CASE("host: undone exactly also when calls fail while it is undone", "[H5]") {
  const test::ProcessState before = test::process_state();
  {
    MapSet set(host_memory(), -1, kPage);
    for (long k = 1; k <= 12; ++k) {
      INFO("call " << k);
      auto mapping = set.make();
      REQUIRE(mapping->map_all().ok());
      test::FaultPlan plan;
      plan.fail_at = k;
      plan.status = ENOMEM;
      {
        const test::ScopedSystemFaults faults(plan);
        mapping.reset();
      }
      CHECK(set.space().mapped().empty());
      auto again = set.make();
      REQUIRE(again->map_all().ok());
      set.check_books(*again, MapSet::kAllocations);
    }
  }
  CHECK(test::process_state() == before);
}

TEST_CASE("host: where memory for the books runs out, nothing is mapped that is not on them",
          "[H5]") {
  const test::ProcessState before = test::process_state();
  {
    MapSet set(host_memory(), -1, kPage);
    set.warm_up();
    const std::size_t unmapped = count_shared();
    int failures = 0;
    for (long k = 0;; ++k) {
      INFO("with memory for " << k << " allocations");
      REQUIRE(k < 1000);
      auto mapping = set.make();
      bool thrown = false;
      allocations_left = k;
      try {
        thrown = !mapping->map_all().ok();
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      allocations_left = -1;
      set.check_books(*mapping, count_shared() - unmapped);
      mapping.reset();
      CHECK(set.space().mapped().empty());
      CHECK(count_shared() == unmapped);
      if (!thrown) break;
      ++failures;
    }
    CHECK(failures > MapSet::kAllocations);
    auto again = set.make();
    CHECK(again->map_all().ok());
  }
  CHECK(test::process_state() == before);
}

TEST_CASE("host: mapping again what is mapped only counts", "[H7]") {
  MapSet set(host_memory(), -1, kPage);
  auto first = set.make();
  REQUIRE(first->map_all().ok());
  const std::size_t mapped = count_shared();
  test::FaultPlan count;
  auto second = set.make();
  {
    const test::ScopedSystemFaults faults(count);
    REQUIRE(second->map_all().ok());
  }
  CHECK(count.calls == 0);
  CHECK(count_shared() == mapped);
  for (const auto& part : set.space().mapped()) CHECK(part.holders == 2);
  first.reset();
  CHECK(count_shared() == mapped);
  set.check_books(*second, MapSet::kAllocations);
  second.reset();
  CHECK(set.space().mapped().empty());
}

}  // namespace oriel::window
