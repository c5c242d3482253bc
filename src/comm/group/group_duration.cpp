// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/group_duration.hpp"

#include <algorithm>
#include <cstdint>
#include <map>

#include "kernels/plan/duration.hpp"

namespace oriel::comm {
namespace {

/// Calls of one communicator.
struct Load {
  double collectives_us = 0;
  bool transfers = false;
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
};

double time_of(const CollectiveRequest& request, const kernels::DurationFacts& facts) {
  std::uint64_t bytes = request.count * size_of(request.type);
  if (kernels::sends_blocks(request.collective) || kernels::receives_blocks(request.collective)) {
    bytes *= static_cast<std::uint64_t>(facts.ranks);
  }
  return kernels::duration_us(request.collective, bytes, facts);
}

}  // namespace

std::optional<double> estimate_group_us(GroupJobs& jobs) {
  std::map<const Communicator*, Load> loads;
  for (const CollectiveJob* job : jobs_of_kind<CollectiveJob>(jobs)) {
    loads[job->communicator.get()].collectives_us +=
        time_of(job->request, job->communicator->duration_facts());
  }
  for (const PointToPointJob* job : jobs_of_kind<PointToPointJob>(jobs)) {
    Load& load = loads[job->communicator.get()];
    load.transfers = true;
    (job->request.is_send ? load.bytes_sent : load.bytes_received) +=
        job->request.count * size_of(job->request.type);
  }
  std::optional<double> longest;
  for (const auto& [communicator, load] : loads) {
    double time = load.collectives_us;
    if (load.transfers) {
      time += kernels::transfers_duration_us(load.bytes_sent, load.bytes_received,
                                             communicator->duration_facts());
    }
    longest = std::max(longest.value_or(0), time);
  }
  return longest;
}

}  // namespace oriel::comm
