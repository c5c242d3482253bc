// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "oriel/error.hpp"

#include "base/task.hpp"
#include "boot/link/rank_group.hpp"
#include "net/mlx5/mlx5_queue.hpp"

namespace oriel::net {

/// Connects queues between all members of a group; collective. `queues[i]` holds the queues that
/// this rank has made for member i; none for itself. Member i must have made as many for this rank:
/// the k-th of one is connected to the k-th of the other. `made` is the result of making them.
///
/// The members agree on `made`, exchange all handles, and agree on the connections. So every rank
/// returns the same outcome, except that failures of the transport itself can differ. After an
/// error the caller destroys the queues of this call. Queues of earlier calls are not touched and
/// may be in use.
///
/// Each rank receives the handles of all: 36 bytes for each queue of the group. `queues` outlives
/// the task.
Task<Status> connect_queues(boot::Group& group, Status made,
                            std::vector<std::vector<Mlx5Queue>>& queues);

}  // namespace oriel::net
