// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "nccl.h"
#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "comm/communicator/split.hpp"
#include "comm/group/comm_job.hpp"
#include "comm/group/init_job.hpp"

namespace oriel::comm {

/// A communicator to split, which is the parent.
struct SplitJob : CommJob {
  SplitRequest request{};
  std::optional<PendingHandle> handle{};  ///< of the child; none where this rank will be in none
};

/// Makes the job of one rank. If the rank has a color, `out` holds the handle of the child from now
/// on; `out` may be null where the request is refused.
SplitJob make_split_job(std::shared_ptr<CommEntry> entry,
                        std::shared_ptr<Communicator> communicator, SplitRequest request,
                        ncclComm_t* out);

/// Splits the parent, and concludes the job.
Task<void> run_split(EventLoop& loop, SplitJob& job);

/// Gives the job its outcome: the child, or why there is none. Once for each job.
void conclude(SplitJob& job, Result<std::shared_ptr<Communicator>> outcome);

}  // namespace oriel::comm
