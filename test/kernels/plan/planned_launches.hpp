// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "base/try.hpp"
#include "kernels/plan/exchange.hpp"

namespace oriel::test {

/// Returns a collective as an exchange in memory of its own.
inline kernels::Exchange exchange_of(const kernels::RankCollective& call) {
  kernels::Exchange exchange;
  kernels::set_exchange(exchange, call);
  return exchange;
}

/// Returns a group's sends and receives as an exchange in memory of its own.
inline Result<kernels::Exchange> exchange_of(const std::vector<kernels::PointToPoint>& calls,
                                             int rank) {
  kernels::Exchange exchange;
  ORIEL_CHECK(kernels::set_exchange(exchange, calls, rank));
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
