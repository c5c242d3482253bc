// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "nccl.h"
#include "oriel/error.hpp"

#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/comm_job.hpp"

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
  /// Takes the start's outcome, once, and returns what has become of it (CommEntry::finished). A
  /// blocking communicator's handle ends with its failure; the user of another keeps it, and is
  /// told the error through it.
  Status finish(Result<std::shared_ptr<Communicator>> outcome);

 private:
  std::shared_ptr<CommEntry> entry_;  // null once it has an outcome
  ncclComm_t handle_ = nullptr;       // null once it has ended or is the user's alone
  ncclComm_t* out_ = nullptr;
};

struct InitJob {
  JoinRequest request;
  PendingHandle handle;
  JobState state{};
};

/// What lets a rank start, with a new handle. A rank whose options or device are an error tells the
/// other ranks so, for they wait for it; `blocking` counts then too.
InitJob make_init_job(const boot::UniqueId& id, int rank, int size,
                      const Result<CommunicatorOptions>& options, bool blocking,
                      const Result<Device*>& device);

}  // namespace oriel::comm
