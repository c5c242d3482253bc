// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Rows H5 and H7 of the reference on queues: which allocations are mapped is exact after a failure
// at any of them, and mapping what is mapped only counts.
#include "window/mapping/map_set.hpp"

#include <cerrno>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "support/fault.hpp"
#include "support/process_state.hpp"
#include "window/memory/memory_host.hpp"
#include "window/memory/sizes.hpp"

namespace oriel::window {
namespace {

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
      set.check_books(mapped);
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
    set.check_books(MapSet::kAllocations);
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
  set.check_books(MapSet::kAllocations);
  second.reset();
  CHECK(set.space().mapped().empty());
}

}  // namespace oriel::window
