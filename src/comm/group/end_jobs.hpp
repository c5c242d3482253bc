// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "nccl.h"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "comm/group/job.hpp"

/// The end of handles. Memory that a launch or a captured graph may still use lives until that has
/// ended or gone.
namespace oriel::comm {

/// Bound for an abort, below the 250 ms that are promised.
inline constexpr Duration kAbortTime = std::chrono::milliseconds(150);

/// Waits for the communicator's work, as drain() does, and ends its handle.
Status destroy_communicator(ncclComm_t handle);

/// Ends the communicator's waits and its handle. Returns once its memory is freed, or after
/// kAbortTime: a thread of the library frees the memory when nothing uses it any more.
Status abort_communicator(ncclComm_t handle);

/// Carries out all requests of the list, which are ends: aborts reach all communicators before the
/// first end waits.
void run_ends(GroupJobs& jobs);

}  // namespace oriel::comm
