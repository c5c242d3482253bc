// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/split_job.hpp"

#include <utility>

namespace oriel::comm {
namespace {

Status conclude(SplitJob& job, Result<std::shared_ptr<Communicator>> outcome) {
  if (!job.handle) return outcome.ok() ? Status() : Status(std::move(outcome).error());
  Status status = job.handle->finish(std::move(outcome));
  // A call that returns an error leaves no handle; one in the background has left it to the user.
  if (!status.ok()) job.handle->end();
  return status;
}

Task<Status> run_in_turn(EventLoop& loop, std::vector<SplitJob*> jobs) {
  Status first;
  for (SplitJob* const job : jobs) {
    SplitRequest request = job->request;
    std::shared_ptr<Communicator> parent = job->communicator;
    auto outcome = co_await split(loop, std::move(parent), std::move(request));
    Status status = conclude(*job, std::move(outcome));
    if (first.ok() && !status.ok()) first = std::move(status);
  }
  co_return first;
}

/// Divides the jobs among their parents, in the order of the calls.
std::vector<std::vector<SplitJob*>> by_parent(std::vector<SplitJob>& jobs) {
  std::vector<std::vector<SplitJob*>> lists;
  for (SplitJob& job : jobs) {
    std::vector<SplitJob*>* mine = nullptr;
    for (auto& list : lists) {
      if (list.front()->communicator == job.communicator) mine = &list;
    }
    if (mine == nullptr) mine = &lists.emplace_back();
    mine->push_back(&job);
  }
  return lists;
}

}  // namespace

SplitJob make_split_job(std::shared_ptr<CommEntry> entry,
                        std::shared_ptr<Communicator> communicator, SplitRequest request,
                        ncclComm_t* out) {
  SplitJob job{std::move(entry), std::move(communicator), std::move(request), std::nullopt};
  if (!job.request.color || out == nullptr) return job;
  const bool blocking = job.request.options ? job.request.options->blocking : job.entry->blocking();
  auto child = std::make_shared<CommEntry>(job.entry->device(), blocking);
  job.handle.emplace(child);
  job.handle->show(out);
  job.request.on_session = [child](boot::Session* session) { child->starts_on(session); };
  return job;
}

Status run_splits(EventLoop& loop, std::vector<SplitJob>& jobs) {
  std::vector<Task<Status>> tasks;
  for (auto& list : by_parent(jobs)) tasks.push_back(run_in_turn(loop, std::move(list)));
  Status first;
  for (Status& status : loop.run_all(std::move(tasks))) {
    if (first.ok() && !status.ok()) first = std::move(status);
  }
  return first;
}

Status end_split(SplitJob& job, Error reason) {
  return conclude(job, std::move(reason));
}

}  // namespace oriel::comm
