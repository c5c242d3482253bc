// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "net/failover/failover_random_faults.hpp"
#include "support/sanitized.hpp"

using namespace oriel::net::test;

TEST_CASE("random work over random faults: each WQE is done once, in order",
          "[req:3.14][B4][F3][F4][F7]") {
  run_seeds(oriel::test::repeats(100u, 5u), [](FailoverPair::Options&) {});
}
