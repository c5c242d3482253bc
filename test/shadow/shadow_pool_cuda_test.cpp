// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "shadow/shadow_pool_cuda.hpp"

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/fault_cuda.hpp"

// The GPU half of the pool, over the model of the driver.
namespace oriel::shadow {
namespace {

using test::FakeCuda;

struct GpuObject {
  std::uint64_t values[8];
};

Status work(int objects) {
  ORIEL_TRY(auto pool, cuda_pool(0, sizeof(GpuObject), 64));
  Shadows<GpuObject> shadows(pool);
  std::vector<GpuObject*> made;
  for (int i = 0; i < objects; ++i) {
    ORIEL_TRY(GpuObject * object, shadows.allocate({{static_cast<std::uint64_t>(i), 1}}));
    made.push_back(object);
  }
  ORIEL_CHECK(shadows.flush());
  for (int i = 0; i < objects; ++i) {
    const GpuObject& object = *made[static_cast<std::size_t>(i)];  // the model's memory can be read
    if (object.values[0] != static_cast<std::uint64_t>(i) || object.values[1] != 1) {
      return Error(ErrorCode::internal, "an object does not hold what its copy does");
    }
    ORIEL_CHECK(shadows.free(made[static_cast<std::size_t>(i)]));
  }
  return {};
}

void check_clean(const FakeCuda& fake) {
  CHECK(fake.violations() == std::vector<std::string>());
  CHECK(fake.held() == FakeCuda::Held());
  CHECK(fake.context_depth() == 0);
  CHECK(fake.capture_mode() == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

TEST_CASE("objects on a GPU go up in one copy", "[req:1.20]") {
  FakeCuda fake;
  CHECK(work(1000).ok());
  CHECK(fake.copies() == 1);  // and no fill, which would take a kernel
  check_clean(fake);
}

TEST_CASE("a pool is one for its process, device and size", "[req:1.20]") {
  FakeCuda fake({.devices = 2});
  {
    auto first = cuda_pool(0, 64, 64);
    auto second = cuda_pool(0, 64, 64);
    auto other = cuda_pool(1, 64, 64);
    REQUIRE(first.ok());
    REQUIRE(second.ok());
    REQUIRE(other.ok());
    CHECK(*first == *second);
    CHECK(*first != *other);
    CHECK_FALSE(cuda_pool(2, 64, 64).ok());
  }
  check_clean(fake);
}

TEST_CASE("the pool waits for its own stream only, and breaks nobody's capture", "[req:1.20]") {
  FakeCuda fake;
  fake.begin_foreign_capture();
  CHECK(work(100).ok());
  fake.end_foreign_capture();
  check_clean(fake);  // the model notes a stream that is not non-blocking, and calls in a capture
}

TEST_CASE("whichever driver call of the pool fails, nothing leaks", "[req:1.41]") {
  long calls = 0;
  for (long k = 0; k == 0 || k <= calls; ++k) {
    FakeCuda fake;
    {
      const test::CudaFaultHooks hooks;
      test::FaultPlan plan;
      plan.fail_at = k;
      plan.status = CUDA_ERROR_UNKNOWN;
      const test::ScopedCudaFaults faults(plan);
      const Status outcome = work(10);
      if (k == 0) {
        CHECK(outcome.ok());
        calls = plan.calls;
        CHECK(calls > 20);
      }
      CAPTURE(k, plan.failed.load());
      if (!outcome.ok()) {
        CHECK(plan.hit());
        CHECK(outcome.error().native().value == CUDA_ERROR_UNKNOWN);
      }
      CHECK(fake.violations() == std::vector<std::string>());
      CHECK(fake.held() == FakeCuda::Held());
    }
    check_clean(fake);
  }
}

}  // namespace
}  // namespace oriel::shadow
