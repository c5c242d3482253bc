// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "comm/group/job.hpp"

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
  /// Ends one level; the outermost runs the requests. If a call inside was refused it refuses them
  /// all, but still ends handles. `in_progress` is set if some of it goes on in the background.
  Status end(bool& in_progress);
  /// Ends one level as end() does, but the outermost one carries nothing out and tells no other
  /// rank: its requests are gone.
  Status drop();
  bool open() const { return depth_ > 0; }

  /// Notes a request, or runs it at once outside a group.
  Status submit(Job job, bool& in_progress);
  /// Several at once: inside a group all are noted or none.
  Status submit(std::vector<InitJob> jobs, bool& in_progress);
  /// Inside a group a call that cannot be made is refused here already.
  Status submit(CollectiveJob job);
  Status submit(PointToPointJob job);
  /// Notes a request inside a group. Refused if the group ends the communicator before.
  Status note(Job job);
  /// A call inside the group was refused; the end of the group says so too.
  void remember(const Error& error);

 private:
  /// Refused for a group that was not started.
  Status close_level(const char* call);
  /// Refused behind a request that ends the communicator.
  Status check_open(const CommEntry* entry) const;
  Status check_order(const Job& job) const;
  void clear();

  int depth_ = 0;
  GroupJobs jobs_;
  std::vector<const CommEntry*> ending_;  // those that the group destroys or aborts
  std::optional<Error> error_;
};

}  // namespace oriel::comm
