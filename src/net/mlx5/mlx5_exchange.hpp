// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "oriel/error.hpp"

#include "base/task.hpp"
#include "boot/link/rank_group.hpp"
#include "net/mlx5/mlx5_queue.hpp"

namespace oriel::net {

/// Connects queues between all members of a group; collective. `queues[i]` are those that this rank
/// has made for member i, none for itself, and as many as that member has made for this one: the
/// k-th of the one is connected to the k-th of the other. `made` is how making them went.
///
/// One agreement on `made`, one exchange of all handles, one agreement on the connections: every
/// rank gets the same outcome. After an error the caller destroys the queues of this call; those of
/// earlier calls are not touched, and may be in use.
///
/// Each rank gets the handles of all: 36 bytes for each queue of the group. `queues` outlives the
/// task.
Task<Status> connect_queues(boot::Group& group, Status made,
                            std::vector<std::vector<Mlx5Queue>>& queues);

}  // namespace oriel::net
