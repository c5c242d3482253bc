// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "nccl.h"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "comm/group/job.hpp"

/// Ends handles. Memory that a launch or a captured graph may still use is kept until the launch
/// has ended or the graph is destroyed.
namespace oriel::comm {

/// Time limit of an abort, below the promised 250 ms.
inline constexpr Duration kAbortTime = std::chrono::milliseconds(150);

/// Waits for the communicator's work (Communicator::drain) and ends its handle.
Status destroy_communicator(ncclComm_t handle);

/// Ends the communicator's waits and its handle. Returns once its memory is freed, or after
/// kAbortTime. After that, a thread of the library frees the memory when nothing uses it any more.
Status abort_communicator(ncclComm_t handle);

/// Runs all requests of the list, which end handles. All communicators to abort are aborted before
/// the first end waits.
void run_ends(GroupJobs& jobs);

}  // namespace oriel::comm
