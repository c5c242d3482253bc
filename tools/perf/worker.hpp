// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "perf/channel.hpp"
#include "perf/options.hpp"
#include "perf/shared_barrier.hpp"

namespace oriel::perf {

/// Position of a rank in its set of ranks.
struct Place {
  int rank = 0;
  int ranks = 1;
  int local_rank = 0;
};

/// One rank of a process and its connection to the coordinator.
struct WorkerRank {
  Place place;
  Channel coordinator;
};

/// Serves the coordinator's requests, one thread per rank, until "finish". Returns the exit status:
/// 0, or 1 if a rank failed. Sets environment variables, so no other thread may run.
///
/// Each request is answered with a JSON object. After a failure the object has "error", and the
/// rank ends. Every rank first sends one message without a request, with its process, host, device
/// and library, or with an error.
///
/// Requests ("do"):
/// - unique_id
/// - init {id}
/// - allocate {bytes}
/// - prepare {type, op, count, in_place, sets, calls, blocks}
/// - warm {calls}
/// - fill {seed}
/// - time {jitter_us, jitter_seed}
/// - check {seed, first, last} (sets)
/// - finish
int run_workers(const Options& options, const Contestant& contestant,
                const std::vector<WorkerRank>& worker_ranks, const SharedBarrier& barrier);

}  // namespace oriel::perf
