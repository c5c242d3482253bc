// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "perf/channel.hpp"
#include "perf/options.hpp"
#include "perf/shared_barrier.hpp"

namespace oriel::perf {

/// Which rank of which set of ranks a process is.
struct Place {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
};

/// Carries out the coordinator's requests until told to finish, and returns the status to exit
/// with. Each request is answered with an object that holds "error" if something failed; after that
/// the rank ends. Never returns before the first message, which tells what was found here.
///
/// Requests ("do"): unique_id; init {id}; allocate {bytes}; prepare {type, op, count, in_place,
/// sets, calls, blocks}; warm {calls}; fill {seed}; time {jitter_us, jitter_seed}; check {seed,
/// first, last} (sets); finish.
int run_worker(const Options& options, const Contestant& contestant, const Place& place,
               const Channel& coordinator, const SharedBarrier& barrier);

}  // namespace oriel::perf
