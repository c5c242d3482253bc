// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "comm/group/job.hpp"

/// Runs the requests of a group for all communicators of a thread together.
namespace oriel::comm {

/// Refuses all requests with `error`, except those that end a handle. Starts, splits and
/// registrations pass the error to their peers when they run, and all get it. Calls that move data
/// and finalizations are dropped without informing anyone.
void refuse(GroupJobs& jobs, const Error& error);

/// Runs all requests: set-up of all communicators together, then calls (run_calls()), then
/// finalizations, then destructions and aborts. Every request is attempted, except calls after a
/// failed call. Returns the failure that is first in call order. If memory runs out, aborts the
/// communicators of the requests and throws std::bad_alloc. Exceptions are starts, requests that
/// end a handle, and background work that has started.
///
/// Blocks, except for requests of non-blocking communicators that have no call here. Their starts,
/// splits, registrations and finalizations run in the background, on one thread per communicator. A
/// communicator with a call stays here, because its requests must have ended when the group ends.
/// Sets `in_progress` if there is background work. Leaves `jobs` unusable.
Status run_jobs(GroupJobs& jobs, bool& in_progress);

}  // namespace oriel::comm
