// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/plan/exchange.hpp"

namespace oriel::test {

/// Returns the launches of an exchange in memory of their own.
inline kernels::LaunchList launches_of(const kernels::Exchange& exchange,
                                       const kernels::ExchangeFacts& facts) {
  kernels::LaunchList launches;
  kernels::plan_exchange(exchange, facts, launches);
  return launches;
}

}  // namespace oriel::test
