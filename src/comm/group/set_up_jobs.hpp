// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "comm/group/job.hpp"

/// Runs the set-up requests of a group: starts, splits and registrations of windows.
namespace oriel::comm {

/// While it exists, an abort of the entry ends the waits of `loop`.
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

/// Runs all set-up requests together, so that no communicator waits for another. Requests on one
/// communicator run in call order. Its windows form one batch, at the place of the first. Every
/// request is attempted.
void run_set_up(EventLoop& loop, GroupJobs& jobs);

/// Informs the other ranks of a start why this rank does not join; returns the reason.
Task<Result<std::shared_ptr<Communicator>>> decline(EventLoop& loop, JoinRequest request);

}  // namespace oriel::comm
