// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "nccl.h"
#include "oriel/error.hpp"

#include "comm/comm_entry.hpp"
#include "comm/communicator.hpp"

/// What the calls of a group have asked for, and how it is carried out for all communicators of a
/// thread at once.
namespace oriel::comm {

/// The handle of a rank that is to start, until its start has an outcome. If there comes none, for
/// the group was refused or memory ran out, the handle ends with this object.
class PendingHandle {
 public:
  explicit PendingHandle(std::shared_ptr<CommEntry> entry);
  PendingHandle(PendingHandle&&) noexcept = default;
  PendingHandle& operator=(PendingHandle&&) = delete;
  ~PendingHandle();

  const std::shared_ptr<CommEntry>& entry() const { return entry_; }
  ncclComm_t handle() const { return handle_; }
  /// Stores the handle at `out`, where it becomes null if it ends here.
  void show(ncclComm_t* out);
  /// Nothing is written to `out` any more.
  void forget_place() { out_ = nullptr; }
  /// From now on the user's alone: nothing is written to `out` any more.
  void leave_to_user();
  /// Ends the handle; the start may still go on.
  void end();
  /// The start's outcome, once. A blocking communicator's handle ends with its failure; the user of
  /// another keeps it, and is told the error through it.
  void finish(Result<std::shared_ptr<Communicator>> outcome);

 private:
  std::shared_ptr<CommEntry> entry_;  // null once it has an outcome
  Error no_outcome_;                  // made while there is memory for it
  ncclComm_t handle_ = nullptr;       // null once it has ended or is the user's alone
  ncclComm_t* out_ = nullptr;
};

struct InitJob {
  JoinRequest request;
  PendingHandle handle;
};

/// What lets a rank start, with a new handle. A rank whose options or device are an error tells the
/// other ranks so, for they wait for it; `blocking` counts then too.
InitJob make_init_job(const boot::UniqueId& id, int rank, int size,
                      const Result<CommunicatorOptions>& options, bool blocking,
                      const Result<Device*>& device);

struct WindowJob {
  std::shared_ptr<CommEntry> entry;
  std::shared_ptr<Communicator> communicator;
  window::WindowRequest request;
  ncclWindow_t* out = nullptr;
  void* registered = nullptr;  ///< the outcome, not yet stored for the user
};

struct CollectiveJob {
  std::shared_ptr<Communicator> communicator;
  CollectiveRequest request;
};

/// A communicator to finalize.
struct FinalizeJob {
  std::shared_ptr<CommEntry> entry;
  std::shared_ptr<Communicator> communicator;
  std::optional<Error> refused{};  ///< why this rank cannot take part: all ranks then learn of that
};

/// The noted calls of one group, in four lists that are carried out in this order.
struct GroupJobs {
  std::vector<InitJob> inits;
  std::vector<WindowJob> windows;
  std::vector<CollectiveJob> collectives;
  std::vector<FinalizeJob> finalizes;
};

/// Refuses all jobs with `error`. Once run, those that start, register or finalize tell their other
/// ranks, which all get the same error; of collectives nobody is told.
void refuse(GroupJobs& jobs, const Error& error);

/// Carries out all jobs, each list for all communicators at once: set-up in one event loop, on the
/// host collectives of different communicators on threads of their own (they wait for each other).
/// All lists are attempted, but of the collectives none if one of them is wrong. The first error is
/// returned. Blocking.
Status run_jobs(GroupJobs jobs);

/// Has the jobs of non-blocking communicators carried out in the background, each communicator's on
/// a thread of its own, and takes them from `jobs`: starts, and the registrations and finalization
/// of communicators that have no collective here, for that is to have ended when the group has.
/// What can be done before other ranks come is an error here; `in_progress` is set if there is
/// work under way.
Status start_in_background(GroupJobs& jobs, bool& in_progress);

}  // namespace oriel::comm
