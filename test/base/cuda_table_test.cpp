// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/cuda_table.hpp"

#include <catch2/catch.hpp>

namespace oriel {
namespace {

TEST_CASE("a machine without a driver gets an error that says so", "[req:1.2]") {
  const Status ready = cuda_ready();
  if (ready.ok()) {
    int version = 0;
    CHECK(cuda().driver_get_version(&version) == CUDA_SUCCESS);
    CHECK(version >= 12000);
    return;
  }
  CHECK(ready.error().code() == ErrorCode::cuda);
  CHECK(ready.error().native().domain == NativeDomain::cuda_driver);
  const std::string& message = ready.error().message();
  CHECK((message.find("driver") != std::string::npos));
  // Without a driver, calls through the table fail instead of crashing.
  int count = 0;
  CHECK(cuda().device_get_count(&count) != CUDA_SUCCESS);
  CHECK(cuda().mem_unmap(0, 0) != CUDA_SUCCESS);
}

TEST_CASE("a driver error carries its number, and its name where there is a driver", "[req:1.38]") {
  const Error error = cuda_error("mapping 2097152 bytes", CUDA_ERROR_INVALID_VALUE);
  CHECK(error.native().value == CUDA_ERROR_INVALID_VALUE);
  CHECK(error.message().find("mapping 2097152 bytes failed") == 0);
  CHECK(cuda_status("anything", CUDA_SUCCESS).ok());
}

CUresult fake_init(unsigned) {
  return CUDA_SUCCESS;
}
CUresult fake_count(int* count) {
  *count = 0;
  return CUDA_SUCCESS;
}
CUresult fake_name(CUresult, const char** name) {
  *name = "CUDA_ERROR_OF_A_TEST";
  return CUDA_SUCCESS;
}

TEST_CASE("while a table replaces the driver's, its functions are called", "[req:1.41]") {
  CudaTable table = cuda();
  table.init = fake_init;
  table.device_get_count = fake_count;
  table.get_error_name = fake_name;
  {
    const ScopedCudaTable scoped(table);
    const Status ready = cuda_ready();
    REQUIRE_FALSE(ready.ok());
    CHECK(ready.error().message().find("no device") != std::string::npos);
    CHECK(cuda_error("a call", CUDA_ERROR_UNKNOWN).message().find("CUDA_ERROR_OF_A_TEST") !=
          std::string::npos);
  }
  CHECK(&cuda() != &table);
}

}  // namespace
}  // namespace oriel
