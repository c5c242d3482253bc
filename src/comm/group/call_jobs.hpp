// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/group/job.hpp"

/// The calls of a group that move data, and how they are carried out.
namespace oriel::comm {

/// Makes all calls of a group. For each communicator its collectives come first, then its sends and
/// receives as one exchange. All calls are checked before the first begins: if one is wrong, none
/// is made. Calls behind one that fails are not made.
///
/// All streams that the group names for a communicator meet before its first launch and wait for
/// its last. GPU launches are enqueued first, all from this thread: collectives in the order of the
/// calls, then exchanges in an order of communicators that all ranks share. Then the CPU
/// communicators run, each on a thread of its own if there are several, for a call ends when the
/// other ranks have come.
void run_calls(GroupJobs& jobs);

/// Makes one send or receive outside a group.
Status run_alone(Communicator& communicator, const PointToPointRequest& request);

}  // namespace oriel::comm
