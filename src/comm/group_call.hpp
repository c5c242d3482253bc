// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "nccl.h"
#include "oriel/error.hpp"

#include "comm/comm_entry.hpp"
#include "comm/communicator.hpp"

/// Group calls: what a thread asks for between ncclGroupStart and ncclGroupEnd is noted and carried
/// out at the end, for all its communicators at once, so that one thread can play several ranks. A
/// call outside any group is a group of one.
namespace oriel::comm {

struct InitJob {
  JoinRequest request;
  std::shared_ptr<CommEntry> entry;
  ncclComm_t handle = nullptr;
  ncclComm_t* out = nullptr;  ///< where the user keeps the handle; set to null on failure
};

/// What lets a rank start, with a new handle. A rank whose options or device are an error tells the
/// other ranks so, for they wait for it; `blocking` counts then too.
InitJob make_init_job(const boot::UniqueId& id, int rank, int size,
                      const Result<CommunicatorOptions>& options, bool blocking,
                      const Result<Device*>& device);

struct WindowJob {
  std::shared_ptr<Communicator> communicator;
  window::WindowRequest request;
  ncclWindow_t* out = nullptr;
};

struct AllReduceJob {
  std::shared_ptr<Communicator> communicator;
  AllReduceRequest request;
};

/// Communicators to finalize.
struct FinalizeJob {
  std::shared_ptr<Communicator> communicator;
};

/// The noted calls of one group, in four lists that are carried out in this order.
struct GroupJobs {
  std::vector<InitJob> inits;
  std::vector<WindowJob> windows;
  std::vector<AllReduceJob> all_reduces;
  std::vector<FinalizeJob> finalizes;
};

/// Carries out all jobs, each list for all communicators at once: set-up in one event loop, on the
/// host collectives of different communicators on threads of their own (they wait for each other).
/// All jobs are attempted; the first error is returned. Blocking.
Status run_jobs(GroupJobs jobs);

/// The calling thread's group.
class ThreadGroup {
 public:
  static ThreadGroup& current();

  void start() { ++depth_; }
  /// Ends one level; the outermost runs the jobs. `in_progress` is set if they go on in the
  /// background, because they start a non-blocking communicator.
  Status end(bool& in_progress);
  bool open() const { return depth_ > 0; }

  /// Notes a job, or runs it at once outside a group.
  Status submit(InitJob job, bool& in_progress);
  Status submit(WindowJob job);
  Status submit(AllReduceJob job);
  Status submit(FinalizeJob job);
  /// A call inside the group was refused; the end of the group says so too.
  void remember(const Error& error);
  /// Forgets the communicators that the group was to start, with their handles.
  void drop_inits();

 private:
  Status run(GroupJobs jobs, bool& in_progress);

  int depth_ = 0;
  GroupJobs jobs_;
  std::optional<Error> error_;
};

}  // namespace oriel::comm
