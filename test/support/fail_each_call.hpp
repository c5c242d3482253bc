// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <catch2/catch.hpp>

#include "oriel/error.hpp"

#include "support/fault.hpp"

namespace oriel::test {

/// Runs `use(plan)`, which returns a Status, once without a fault. Then runs `use` once for each
/// call, with this call failing with `status`, which a returned error must carry as its native
/// value. Calls `check(plan, outcome)` after each run. Returns the number of calls of the run
/// without a fault.
template <typename Use, typename Check>
long fail_each_call(int status, const Use& use, const Check& check) {
  long calls = 0;
  for (long k = 0; k == 0 || k <= calls; ++k) {
    FaultPlan plan;
    plan.fail_at = k;
    plan.status = status;
    const Status outcome = use(plan);
    CAPTURE(k, plan.failed.load());
    if (k == 0) {
      REQUIRE(outcome.ok());
      calls = plan.calls;
    } else if (!outcome.ok()) {
      CHECK(plan.hit());
      CHECK(outcome.error().native().value == status);
    }
    check(plan, outcome);
  }
  return calls;
}

}  // namespace oriel::test
