// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "oriel/error.hpp"

#include "comm/group/job.hpp"

/// Runs the calls of a group that move data.
namespace oriel::comm {

/// Runs all calls of a group. For each communicator, its collectives come first, then its sends and
/// receives as one exchange. All calls are checked before the first starts: if one is invalid, none
/// runs. Calls after a failed call do not run, except those of other CPU communicators that follow
/// a failed CPU call.
///
/// All streams that the group uses for a communicator join before its first launch and wait for its
/// last launch. GPU launches are enqueued first, all from this thread. Collectives are enqueued in
/// call order, then exchanges in an order of communicators that all ranks share. Then the CPU
/// communicators run. If there are several, each has its own thread, because a call ends only when
/// the other ranks have arrived.
void run_calls(GroupJobs& jobs);

/// Runs sends and receives of one communicator on one stream, all that a group has. check() has
/// accepted each.
Status run_transfers(Communicator& communicator, std::span<const PointToPointRequest> requests);

}  // namespace oriel::comm
