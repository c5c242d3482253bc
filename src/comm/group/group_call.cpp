// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/group_call.hpp"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/thread_object.hpp"
#include "base/try.hpp"

namespace oriel::comm {
namespace {

Status check_kinds(const std::vector<InitJob>& inits) {
  const auto blocking = [](const InitJob& job) { return job.handle.entry()->blocking(); };
  if (std::all_of(inits.begin(), inits.end(), blocking) ||
      std::none_of(inits.begin(), inits.end(), blocking)) {
    return {};
  }
  return Error(ErrorCode::invalid_usage, "a group starts blocking and non-blocking communicators");
}

}  // namespace

ThreadGroup& ThreadGroup::current() {
  return ThreadObject<ThreadGroup>::get();  // one made late owns nothing once its group has ended
}

ThreadGroup::~ThreadGroup() {
  // Where handles would have been stored may be gone, as the thread's stack is.
  for (InitJob& job : jobs_.inits) job.handle.forget_place();
}

Status ThreadGroup::end(bool& in_progress) {
  if (depth_ == 0) {
    return Error(ErrorCode::invalid_usage, "ncclGroupEnd without ncclGroupStart");
  }
  if (--depth_ > 0) return {};
  GroupJobs jobs = std::exchange(jobs_, GroupJobs{});
  auto refused = std::exchange(error_, std::nullopt);
  if (const Status kinds = check_kinds(jobs.inits); !refused && !kinds.ok()) {
    refused = kinds.error();
  }
  if (!refused) return run_jobs(std::move(jobs), in_progress);
  refuse(jobs, *refused);
  static_cast<void>(run_jobs(std::move(jobs), in_progress));
  return *refused;
}

void ThreadGroup::remember(const Error& error) {
  if (open() && !error_) error_ = error;
}

template <typename Job>
Status ThreadGroup::note(Job job, std::vector<Job> GroupJobs::*list, bool& in_progress) {
  GroupJobs alone;
  std::vector<Job>& jobs = (open() ? jobs_ : alone).*list;
  jobs.push_back(std::move(job));
  return open() ? Status() : run_jobs(std::move(alone), in_progress);
}

Status ThreadGroup::submit(InitJob job, bool& in_progress) {
  return note(std::move(job), &GroupJobs::inits, in_progress);
}

Status ThreadGroup::submit(std::vector<InitJob> jobs, bool& in_progress) {
  if (!open()) return run_jobs({.inits = std::move(jobs)}, in_progress);
  jobs_.inits.reserve(jobs_.inits.size() + jobs.size());
  std::move(jobs.begin(), jobs.end(), std::back_inserter(jobs_.inits));
  return {};
}

Status ThreadGroup::submit(WindowJob job, bool& in_progress) {
  return note(std::move(job), &GroupJobs::windows, in_progress);
}

Status ThreadGroup::submit(CollectiveJob job) {
  if (!open()) return job.communicator->collective(job.request);
  const auto plan = job.communicator->plan_for(job.request);
  if (!plan.ok()) return plan.error();
  jobs_.collectives.push_back(std::move(job));
  return {};
}

Status ThreadGroup::submit(PointToPointJob job) {
  if (!open()) return run_calls({}, {std::move(job)});
  ORIEL_CHECK(job.communicator->check(job.request));
  jobs_.transfers.push_back(std::move(job));
  return {};
}

Status ThreadGroup::submit(FinalizeJob job, bool& in_progress) {
  for (const FinalizeJob& noted : jobs_.finalizes) {
    if (noted.communicator != job.communicator) continue;
    return Error(ErrorCode::invalid_usage, "the group finalizes this communicator already")
        .with_scope(Scope::communicator);
  }
  return note(std::move(job), &GroupJobs::finalizes, in_progress);
}

}  // namespace oriel::comm
