// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "shadow/shadow_pool_cuda.hpp"

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "support/cuda/checked_cuda.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "support/fail_each_call.hpp"

// Tests the pool's GPU backend on a model of the driver.
namespace oriel::shadow {
namespace {

using test::CheckedCuda;

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
    const GpuObject& object = *made[static_cast<std::size_t>(i)];  // the model's memory is readable
    if (object.values[0] != static_cast<std::uint64_t>(i) || object.values[1] != 1) {
      return Error(ErrorCode::internal, "an object does not hold what its copy does");
    }
    ORIEL_CHECK(shadows.free(made[static_cast<std::size_t>(i)]));
  }
  return {};
}

TEST_CASE("a flush of 1,000 objects to a GPU takes one copy", "[req:1.20]") {
  CheckedCuda fake;
  CHECK(work(1000).ok());
  CHECK(fake.copies() == 1);  // no fill, which would need a kernel
}

TEST_CASE("two pools for one device and size are the same, for another device they differ",
          "[req:1.20]") {
  const CheckedCuda fake({.devices = 2});
  const auto first = cuda_pool(0, 64, 64);
  const auto second = cuda_pool(0, 64, 64);
  const auto other = cuda_pool(1, 64, 64);
  REQUIRE((first.ok() && second.ok() && other.ok()));
  CHECK(*first == *second);
  CHECK(*first != *other);
  CHECK_FALSE(cuda_pool(2, 64, 64).ok());
}

TEST_CASE("the pool waits for its own stream only, and breaks nobody's capture", "[req:1.20]") {
  CheckedCuda fake;  // detects blocking streams, and calls in a capture
  fake.begin_foreign_capture();
  CHECK(work(100).ok());
  fake.end_foreign_capture();
}

TEST_CASE("any failed driver call of the shadow pool leaks nothing", "[req:1.41]") {
  const long calls = test::fail_each_call(
      CUDA_ERROR_UNKNOWN,
      [](test::FaultPlan& plan) {
        const CheckedCuda fake;
        const test::CudaFaultHooks hooks;
        const test::ScopedCudaFaults faults(plan);
        return work(10);
      },
      [](const test::FaultPlan&, const Status&) {});
  CHECK(calls > 20);
}

}  // namespace
}  // namespace oriel::shadow
