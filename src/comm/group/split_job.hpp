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

/// Splits `communicator`, the parent.
struct SplitJob : CommJob {
  SplitRequest request{};
  std::optional<PendingHandle> handle{};  ///< handle of the child; not set without a color
};

/// Makes the request of one rank. If the rank has a color, stores the handle of the child at `out`.
/// `out` may be null if the request is refused.
SplitJob make_split_job(std::shared_ptr<CommEntry> entry,
                        std::shared_ptr<Communicator> communicator, SplitRequest request,
                        ncclComm_t* out);

/// Splits the parent, and concludes the request.
Task<void> run_split(EventLoop& loop, SplitJob& job);

/// Sets the outcome of the request: the child, or the error. Call it once per request.
void conclude(SplitJob& job, Result<std::shared_ptr<Communicator>> outcome);

}  // namespace oriel::comm
