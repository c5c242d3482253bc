// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "nccl.h"
#include "oriel/error.hpp"

#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/comm_job.hpp"

namespace oriel::comm {

/// Handle of a rank that starts, until the start has an outcome. If there is no outcome, because
/// the request was dropped or memory ran out, the destructor ends the handle.
class PendingHandle {
 public:
  explicit PendingHandle(std::shared_ptr<CommEntry> entry);
  PendingHandle(PendingHandle&&) noexcept = default;
  PendingHandle& operator=(PendingHandle&&) = delete;
  ~PendingHandle();

  const std::shared_ptr<CommEntry>& entry() const { return entry_; }
  ncclComm_t handle() const { return handle_; }
  /// Stores the handle at `out`. If the handle ends here, sets `*out` to null.
  void show(ncclComm_t* out);
  /// Stops writing to `out`.
  void forget_place() { out_ = nullptr; }
  /// Leaves the handle to the user, and stops writing to `out`.
  void leave_to_user();
  /// Ends the handle; the start may still run.
  void end();
  /// Sets the start's outcome, once, and returns the result of CommEntry::finished(). If the start
  /// of a blocking communicator fails, its handle ends. The user of a non-blocking communicator
  /// keeps the handle and reads the error through it.
  Status finish(Result<std::shared_ptr<Communicator>> outcome);

 private:
  std::shared_ptr<CommEntry> entry_;  // null once the outcome is set
  ncclComm_t handle_ = nullptr;       // null once ended or left to the user
  ncclComm_t* out_ = nullptr;
};

struct InitJob {
  JoinRequest request;
  PendingHandle handle;
  JobState state{};
};

/// Makes the request that starts a rank, with a new handle. If `options` or `device` is an error,
/// the rank passes the error to the other ranks, which wait for it. `blocking` counts even then.
InitJob make_init_job(const boot::UniqueId& id, int rank, int size,
                      const Result<CommunicatorOptions>& options, bool blocking,
                      const Result<Device*>& device);

}  // namespace oriel::comm
