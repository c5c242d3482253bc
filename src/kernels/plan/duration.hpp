// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/collective.hpp"

/// Estimates how long calls take, for ncclGroupSimulateEnd. The formulas are fitted to measurements
/// of f32 on 2 and 4 H200 and on 2 CPU ranks (docs/performance/). No call depends on an estimate.
namespace oriel::kernels {

/// Facts of a communicator that the duration of its calls depends on.
struct DurationFacts {
  Backend backend = Backend::host;
  int ranks = 1;
  int teams = 1;                 ///< LSA teams
  double team_gb_per_s = 8;      ///< one way between a rank and its LSA team, 1e9 bytes per second
  double network_gb_per_s = 10;  ///< one way between a rank and other teams
};

/// Returns the time of a collective in microseconds. `bytes` is the size of the larger buffer of a
/// rank, the root included. The time does not include waiting for late ranks.
double duration_us(Collective collective, std::uint64_t bytes, const DurationFacts& facts);

/// Returns the time in microseconds of sends and receives that one rank makes in a group.
double transfers_duration_us(std::uint64_t bytes_sent, std::uint64_t bytes_received,
                             const DurationFacts& facts);

}  // namespace oriel::kernels
