// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "comm/group/job.hpp"

/// The requests of a group that set something up: starts, splits and registrations of windows.
namespace oriel::comm {

/// While it lives, aborting the entry ends the waits of `loop`.
class LoopScope {
 public:
  LoopScope(EventLoop& loop, std::shared_ptr<CommEntry> entry) : entry_(std::move(entry)) {
    entry_->works_in(&loop);
  }
  ~LoopScope() { entry_->works_in(nullptr); }
  LoopScope(const LoopScope&) = delete;
  LoopScope& operator=(const LoopScope&) = delete;

 private:
  std::shared_ptr<CommEntry> entry_;
};

/// Carries out all set-up requests together, so that no communicator waits for another one. The
/// requests on one communicator are made in the order of the calls; its windows are one batch, at
/// the place of the first. Every request is attempted.
void run_set_up(EventLoop& loop, GroupJobs& jobs);

/// Tells the other ranks of a start why this one does not join; returns that reason.
Task<Result<std::shared_ptr<Communicator>>> decline(EventLoop& loop, JoinRequest request);

}  // namespace oriel::comm
