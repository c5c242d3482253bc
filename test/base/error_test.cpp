// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "oriel/error.hpp"

#include <cerrno>

#include <catch2/catch.hpp>

#include "base/try.hpp"

namespace oriel {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return Error(ErrorCode::invalid_argument, "the number is odd");
  return number / 2;
}

Result<int> quarter(int number) {
  ORIEL_TRY(const int once, half(number));
  ORIEL_TRY(const int twice, half(once));
  return twice;
}

}  // namespace

TEST_CASE("a result carries its value or the first cause", "[req:1.38]") {
  CHECK(quarter(12).value() == 3);
  const auto failed = quarter(6);
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.error().code() == ErrorCode::invalid_argument);
  CHECK(failed.error().message() == "the number is odd");
}

TEST_CASE("an error says what, where, why and what to do", "[req:1.38]") {
  const Error error = Error(ErrorCode::system, "mmap failed")
                          .with_native(NativeDomain::os_errno, ENOMEM)
                          .with_origin(3)
                          .with_origin(5)
                          .with_hint("raise vm.max_map_count")
                          .with_context("mapping rank 2")
                          .with_context("registering a window");
  CHECK(error.origin_rank() == 3);
  CHECK(error.to_string() ==
        "rank 3: registering a window: mapping rank 2: mmap failed (ENOMEM: Cannot allocate "
        "memory); hint: raise vm.max_map_count");
  const Error copy = error;
  CHECK(copy.to_string() == error.to_string());
}

}  // namespace oriel
