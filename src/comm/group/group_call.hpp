// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "comm/group/group_jobs.hpp"

/// Group calls: what a thread asks for between ncclGroupStart and ncclGroupEnd is noted and carried
/// out at the end, for all its communicators at once, so that one thread can play several ranks. A
/// call outside any group is a group of one.
namespace oriel::comm {

/// The calling thread's group.
class ThreadGroup {
 public:
  static ThreadGroup& current();
  ThreadGroup() = default;
  /// Of a thread that ends within a group: nothing that it has noted was begun.
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  void start() { ++depth_; }
  /// Ends one level; the outermost runs the jobs, or refuses them all if a call inside was refused.
  /// `in_progress` is set if some of it goes on in the background.
  Status end(bool& in_progress);
  bool open() const { return depth_ > 0; }

  /// Notes a job, or runs it at once outside a group.
  Status submit(InitJob job, bool& in_progress);
  /// Several at once: inside a group all are noted or none.
  Status submit(std::vector<InitJob> jobs, bool& in_progress);
  Status submit(WindowJob job, bool& in_progress);
  /// Inside a group a call that cannot be made is refused here already.
  Status submit(CollectiveJob job);
  Status submit(PointToPointJob job);
  Status submit(FinalizeJob job, bool& in_progress);
  /// A call inside the group was refused; the end of the group says so too.
  void remember(const Error& error);

 private:
  template <typename Job>
  Status note(Job job, std::vector<Job> GroupJobs::*list, bool& in_progress);

  int depth_ = 0;
  GroupJobs jobs_;
  std::optional<Error> error_;
};

}  // namespace oriel::comm
