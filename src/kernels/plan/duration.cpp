// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "kernels/plan/duration.hpp"

#include <algorithm>

namespace oriel::kernels {
namespace {

constexpr double kBytesPerUsOfGb = 1000;
/// Parts of a duration beside bytes divided by bandwidth. Times are in microseconds.
struct Costs {
  double call;         ///< call between two ranks
  double rank;         ///< more for each further rank
  double transfer;     ///< more for sends and receives
  double teams;        ///< more if there are several LSA teams
  double first_bytes;  ///< the first bytes of a call, which take another time than the rest:
  double factor;       ///< time of a first byte, divided by that of another
};
/// Short messages of GPUs go in lines, half of which are flags. Longer ones need a handshake and
/// fences.
constexpr Costs kGpuCosts = {2.0, 0.3, 1.5, 25, 2 << 20, 2};
/// Short messages of CPU ranks stay in the caches.
constexpr Costs kHostCosts = {0.2, 0.1, 0.05, 20, 128 << 10, 0.25};

const Costs& costs_of(const DurationFacts& facts) {
  return facts.backend == Backend::host ? kHostCosts : kGpuCosts;
}

/// Returns the bytes that the busiest rank sends or receives, whichever are more.
double busiest_bytes(Collective collective, double bytes, double ranks) {
  if (ranks <= 1) return bytes;  // it copies its own buffer
  switch (collective) {
    case Collective::all_reduce:
      return 2 * (ranks - 1) / ranks * bytes;
    case Collective::broadcast:
    case Collective::reduce:
      return bytes;
    default:
      return (ranks - 1) / ranks * bytes;
  }
}

double time_of(double bytes, double bytes_among_teams, const DurationFacts& facts) {
  const Costs& costs = costs_of(facts);
  const double weighted = bytes + (costs.factor - 1) * std::min(bytes, costs.first_bytes);
  double time = costs.call + costs.rank * std::max(0, facts.ranks - 2) +
                weighted / (facts.team_gb_per_s * kBytesPerUsOfGb);
  if (facts.teams > 1) {
    time += costs.teams + bytes_among_teams / (facts.network_gb_per_s * kBytesPerUsOfGb);
  }
  return time;
}

}  // namespace

double duration_us(Collective collective, std::uint64_t bytes, const DurationFacts& facts) {
  const auto all = static_cast<double>(bytes);
  // Among teams, each rank of a team moves its share of what the team moves.
  const double ranks_of_team = static_cast<double>(facts.ranks) / facts.teams;
  const double among_teams = busiest_bytes(collective, all, facts.teams) / ranks_of_team;
  return time_of(busiest_bytes(collective, all, facts.ranks), among_teams, facts);
}

double transfers_duration_us(std::uint64_t bytes_sent, std::uint64_t bytes_received,
                             const DurationFacts& facts) {
  const auto bytes = static_cast<double>(std::max(bytes_sent, bytes_received));
  return costs_of(facts).transfer + time_of(bytes, bytes, facts);
}

}  // namespace oriel::kernels
