// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Rows H5 and H7 over the model of the driver, which knows what is mapped.
#include <catch2/catch.hpp>

#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "window/mapping/map_set.hpp"
#include "window/memory/memory_cuda.hpp"

namespace oriel::window {
namespace {

using test::FakeCuda;

constexpr std::size_t kGranule = std::size_t{2} << 20;

std::unique_ptr<Memory> open_memory() {
  Result<std::unique_ptr<Memory>> made = make_cuda_memory(0);
  REQUIRE(made.ok());
  return std::move(made).value();
}

void check_clean(const FakeCuda& fake) {
  CHECK(fake.violations() == std::vector<std::string>());
  CHECK(fake.held() == FakeCuda::Held());
}

}  // namespace

TEST_CASE("GPU: after a failure at the k-th call exactly what the driver mapped is on the books",
          "[H5]") {
  FakeCuda fake;
  {
    const auto memory = open_memory();
    const test::CudaFaultHooks hooks;
    MapSet set(*memory, 0, kGranule);
    test::FaultPlan count;
    {
      auto mapping = set.make();
      const test::ScopedCudaFaults faults(count);
      REQUIRE(mapping->map_all().ok());
    }
    REQUIRE(count.calls >= 2 * MapSet::kAllocations);
    const int unmapped = fake.held().mappings;
    bool seen[MapSet::kAllocations] = {};
    for (long k = 1; k <= count.calls; ++k) {
      INFO("call " << k << " of " << count.calls);
      auto mapping = set.make();
      test::FaultPlan plan;
      plan.fail_at = k;
      plan.status = CUDA_ERROR_OUT_OF_MEMORY;
      Status status;
      {
        const test::ScopedCudaFaults faults(plan);
        status = mapping->map_all();
      }
      REQUIRE(plan.hit());
      INFO(plan.failed.load());
      const auto mapped = static_cast<std::size_t>(fake.held().mappings - unmapped);
      set.check_books(mapped);
      CHECK(status.ok() == (mapped == MapSet::kAllocations));
      if (!status.ok()) seen[mapped] = true;
      mapping.reset();
      CHECK(set.space().mapped().empty());
      CHECK(fake.held().mappings == unmapped);
    }
    for (const bool one : seen) CHECK(one);
    auto again = set.make();
    CHECK(again->map_all().ok());
  }
  check_clean(fake);
}

TEST_CASE("GPU: mapping again what is mapped makes no call of the driver", "[H7]") {
  FakeCuda fake;
  {
    const auto memory = open_memory();
    const test::CudaFaultHooks hooks;
    MapSet set(*memory, 0, kGranule);
    auto first = set.make();
    REQUIRE(first->map_all().ok());
    const int mapped = fake.held().mappings;
    test::FaultPlan count;
    auto second = set.make();
    {
      const test::ScopedCudaFaults faults(count);
      REQUIRE(second->map_all().ok());
      first.reset();
    }
    CHECK(count.calls == 0);
    CHECK(fake.held().mappings == mapped);
    set.check_books(MapSet::kAllocations);
  }
  check_clean(fake);
}

}  // namespace oriel::window
