// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "comm/group/job.hpp"

/// What the calls of a group have asked for, and how it is carried out for all communicators of a
/// thread at once.
namespace oriel::comm {

/// Refuses all requests with `error`, but those that end a handle. Once run, those that start,
/// split or register tell their other ranks, which all get the same error; calls that move data and
/// finalizations are dropped, and nobody is told.
void refuse(GroupJobs& jobs, const Error& error);

/// Carries out all requests: set-up of all communicators together, then calls as run_calls() does,
/// then finalizations, then destructions and aborts. Every request is attempted, but calls
/// behind one that has failed. Returns the failure that is first in the order of the calls. Where
/// memory runs out, all communicators of the requests have ended.
///
/// Blocking, but for the requests of non-blocking communicators, each of which has a thread of its
/// own: starts, and the splits, registrations and finalization of communicators that have no call
/// here, for that is to have ended when the group has. `in_progress` is set if there is such work.
/// What is left in `jobs` is of no use.
Status run_jobs(GroupJobs& jobs, bool& in_progress);

}  // namespace oriel::comm
