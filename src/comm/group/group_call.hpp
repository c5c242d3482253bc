// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "comm/group/comm_entry.hpp"
#include "comm/group/job.hpp"
#include "comm/request/call_request.hpp"

/// Group calls: the requests of a thread between ncclGroupStart and ncclGroupEnd are recorded. They
/// run at the end, for all communicators together, so that one thread can serve several ranks. A
/// call outside any group is a group of one.
namespace oriel::comm {

/// Group of the calling thread.
class ThreadGroup {
 public:
  static ThreadGroup& current();
  ThreadGroup() = default;
  /// Drops the recorded requests of a thread that ends within a group; none of them has started.
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  void start() { ++depth_; }
  /// Ends one level; the outermost level runs the requests. If a call inside was refused, all
  /// requests are refused, except those that end handles. Sets `in_progress` if work goes on in the
  /// background.
  Status end(bool& in_progress);
  /// Ends one level like end(), but the outermost level drops its requests and informs no other
  /// rank. Sets `estimate` to the calls' estimate_group_us().
  Status simulate_end(std::optional<double>& estimate);
  bool open() const { return depth_ > 0; }

  /// Records a request inside a group, or runs it at once outside a group.
  Status submit(Job job, bool& in_progress);
  /// Submits several starts: inside a group all are recorded or none.
  Status submit(std::vector<InitJob> jobs, bool& in_progress);
  /// Submits a call. Inside a group, a call that cannot run is refused at once.
  Status submit(CollectiveJob job);
  Status submit(const CommTable::Pin& entry, const PointToPointRequest& request);
  /// Records a request inside a group. Refused if the group already ends the communicator.
  Status note(Job job);
  /// Records that a call inside the group was refused; end() returns the first such error.
  void remember(const Error& error);

 private:
  /// Sends and receives of one communicator on one stream. Most groups have nothing else, and need
  /// no other list.
  struct Transfers {
    std::shared_ptr<CommEntry> entry;  // keeps `communicator` alive
    Communicator* communicator = nullptr;
    std::vector<PointToPointRequest> requests;

    bool suits(const CommEntry& of, const PointToPointRequest& request) const {
      return requests.empty() || (entry.get() == &of && requests[0].stream == request.stream);
    }
    void clear() {
      entry.reset();
      requests.clear();
    }
  };

  /// Returns invalid_usage if no group was started.
  Status close_level(const char* call);
  /// Returns invalid_usage if an earlier request destroys or aborts the communicator.
  Status check_not_ended(const CommEntry* entry) const;
  /// Returns invalid_usage if an earlier request ends or finalizes the communicator.
  Status check_open(const CommEntry* entry) const;
  void clear();
  /// Moves the transfers into `jobs_` and returns it, for a request that `transfers_` cannot hold.
  GroupJobs& all_jobs();
  Status run(Transfers transfers);

  int depth_ = 0;
  GroupJobs jobs_;  // empty while `transfers_` has requests
  Transfers transfers_;
  std::vector<const CommEntry*> ending_;      // entries that the group destroys or aborts
  std::vector<const CommEntry*> finalizing_;  // entries that the group finalizes
  std::optional<Error> error_;
};

}  // namespace oriel::comm
