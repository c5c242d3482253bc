// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nccl.h"
#include "oriel/error.hpp"

#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/call_jobs.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/group/init_job.hpp"

/// What the calls of a group have asked for, and how it is carried out for all communicators of a
/// thread at once.
namespace oriel::comm {

struct WindowJob {
  std::shared_ptr<CommEntry> entry;
  std::shared_ptr<Communicator> communicator;
  window::WindowRequest request;
  ncclWindow_t* out = nullptr;
  void* registered = nullptr;  ///< the outcome, not yet stored for the user
};

/// A communicator to finalize.
struct FinalizeJob {
  std::shared_ptr<CommEntry> entry;
  std::shared_ptr<Communicator> communicator;
  std::optional<Error> refused{};  ///< why this rank cannot take part: all ranks then learn of that
};

/// The noted calls of one group, in lists that are carried out in this order.
struct GroupJobs {
  std::vector<InitJob> inits;
  std::vector<WindowJob> windows;
  std::vector<CollectiveJob> collectives;
  std::vector<PointToPointJob> transfers;  ///< sends and receives
  std::vector<FinalizeJob> finalizes;
};

/// Refuses all jobs with `error`. Once run, those that start, register or finalize tell their other
/// ranks, which all get the same error; of other calls nobody is told.
void refuse(GroupJobs& jobs, const Error& error);

/// Carries out all jobs, each list for all communicators at once: set-up in one event loop, calls
/// as run_calls() does. All lists are attempted. The first error is returned. Where memory runs
/// out, all communicators of the jobs have ended.
///
/// Blocking, but for the jobs of non-blocking communicators, each of which has a thread of its own:
/// starts, and the registrations and finalization of communicators that have no call here, for that
/// is to have ended when the group has. `in_progress` is set if there is such work.
Status run_jobs(GroupJobs jobs, bool& in_progress);

}  // namespace oriel::comm
