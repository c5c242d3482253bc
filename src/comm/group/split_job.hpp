// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nccl.h"
#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "comm/communicator/split.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/group/init_job.hpp"

namespace oriel::comm {

/// A communicator to split.
struct SplitJob {
  std::shared_ptr<CommEntry> entry;  ///< of the parent, as is `communicator`
  std::shared_ptr<Communicator> communicator;
  SplitRequest request;
  std::optional<PendingHandle> handle;  ///< of the child; none where this rank will be in none
};

/// Makes the job of one rank. If the rank has a color, `out` holds the handle of the child from now
/// on; `out` may be null where the request is refused.
SplitJob make_split_job(std::shared_ptr<CommEntry> entry,
                        std::shared_ptr<Communicator> communicator, SplitRequest request,
                        ncclComm_t* out);

/// Carries out all jobs in one loop: those of one parent in turn, those of different parents
/// together. Every job is attempted; returns the first error.
Status run_splits(EventLoop& loop, std::vector<SplitJob>& jobs);

/// Ends a job without an attempt, with this outcome.
Status end_split(SplitJob& job, Error reason);

}  // namespace oriel::comm
