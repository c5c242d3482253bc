// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/plan/exchange.hpp"

namespace oriel::test {

/// Returns a collective as an exchange in memory of its own.
inline kernels::Exchange exchange_of(const kernels::RankCollective& call) {
  kernels::Exchange exchange;
  kernels::set_exchange(exchange, call);
  return exchange;
}

/// Returns the launches of an exchange in memory of their own.
inline kernels::LaunchList launches_of(const kernels::Exchange& exchange,
                                       const kernels::ExchangeFacts& facts) {
  kernels::LaunchList launches;
  kernels::plan_exchange(exchange, facts, launches);
  return launches;
}

}  // namespace oriel::test
