// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "perf/channel.hpp"
#include "perf/options.hpp"
#include "perf/shared_barrier.hpp"

namespace oriel::perf {

/// Which rank of a set of ranks it is.
struct Place {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
};

/// One rank of a process, and its connection to the coordinator.
struct Seat {
  Place place;
  Channel coordinator;
};

/// Carries out the coordinator's requests to the ranks of this process until they are told to
/// finish, each rank in a thread of its own, and returns the status to exit with. Sets environment
/// variables, so no other thread may run. Each request is answered with an object that holds
/// "error" if something failed; after that the rank ends. A rank never ends before its first
/// message, which tells what was found here.
///
/// Requests ("do"): unique_id; init {id}; allocate {bytes}; prepare {type, op, count, in_place,
/// sets, calls, blocks}; warm {calls}; fill {seed}; time {jitter_us, jitter_seed}; check {seed,
/// first, last} (sets); finish.
int run_workers(const Options& options, const Contestant& contestant,
                const std::vector<Seat>& seats, const SharedBarrier& barrier);

}  // namespace oriel::perf
