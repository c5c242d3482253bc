// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/group_call.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "base/thread_object.hpp"
#include "base/try.hpp"
#include "comm/group/call_jobs.hpp"
#include "comm/group/group_duration.hpp"
#include "comm/group/group_jobs.hpp"

namespace oriel::comm {
namespace {

Status check_kinds(GroupJobs& jobs) {
  const auto inits = jobs_of_kind<InitJob>(jobs);
  const auto blocking = [](const InitJob* job) { return job->handle.entry()->blocking(); };
  if (std::all_of(inits.begin(), inits.end(), blocking) ||
      std::none_of(inits.begin(), inits.end(), blocking)) {
    return {};
  }
  const auto count = std::count_if(inits.begin(), inits.end(), blocking);
  return Error(ErrorCode::invalid_usage,
               fmt::format("a group starts {} blocking and {} non-blocking communicators", count,
                           static_cast<std::ptrdiff_t>(inits.size()) - count))
      .with_hint("give ncclConfig_t::blocking one value in all starts of a group");
}

PointToPointJob job_of(const std::shared_ptr<CommEntry>& entry, Communicator* communicator,
                       const PointToPointRequest& request) {
  // The entry owns the communicator, so this pointer keeps the entry alive.
  return {{entry, std::shared_ptr<Communicator>(entry, communicator)}, request};
}

}  // namespace

ThreadGroup& ThreadGroup::current() {
  // An object made after the thread's end holds no requests once its group has ended.
  return ThreadObject<ThreadGroup>::get();
}

ThreadGroup::~ThreadGroup() {
  // The places for handles may be gone, like the thread's stack.
  for (InitJob* const job : jobs_of_kind<InitJob>(jobs_)) job->handle.forget_place();
  for (SplitJob* const job : jobs_of_kind<SplitJob>(jobs_)) {
    if (job->handle) job->handle->forget_place();
  }
}

Status ThreadGroup::close_level(const char* call) {
  if (depth_ == 0) {
    return Error(ErrorCode::invalid_usage, std::string(call) + " without ncclGroupStart")
        .with_hint("end each group once, in the thread that has started it");
  }
  --depth_;
  return {};
}

void ThreadGroup::clear() {
  jobs_.clear();
  transfers_.clear();
  ending_.clear();
  finalizing_.clear();
  error_.reset();
}

Status ThreadGroup::simulate_end(std::optional<double>& estimate) {
  ORIEL_CHECK(close_level("ncclGroupSimulateEnd"));
  if (open()) return {};
  const auto refused = error_;
  try {
    if (!refused) estimate = estimate_group_us(all_jobs());
  } catch (...) {
    clear();  // the group has ended: a later one must not run its requests
    throw;
  }
  clear();
  return refused ? Status(*refused) : Status();
}

Status ThreadGroup::end(bool& in_progress) {
  ORIEL_CHECK(close_level("ncclGroupEnd"));
  if (open()) return {};
  if (!transfers_.requests.empty() && !error_) return run(std::exchange(transfers_, {}));
  GroupJobs jobs;
  jobs.swap(jobs_);
  auto refused = error_;
  clear();
  if (const Status kinds = check_kinds(jobs); !refused && !kinds.ok()) {
    refused = kinds.error();
  }
  if (refused) refuse(jobs, *refused);
  Status outcome = run_jobs(jobs, in_progress);
  if (refused) return *refused;
  jobs.clear();
  // Keeps the memory of the list for the next group.
  if (!ThreadObject<ThreadGroup>::ended()) jobs_.swap(jobs);
  return outcome;
}

Status ThreadGroup::run(Transfers transfers) {
  clear();
  Status outcome;
  try {
    outcome = run_transfers(*transfers.communicator, transfers.requests);
  } catch (const std::bad_alloc&) {
    outcome = run_out_of_memory(*transfers.communicator);
  }
  transfers.clear();
  // Keeps the memory of the list for the next group.
  if (!ThreadObject<ThreadGroup>::ended()) transfers_.requests.swap(transfers.requests);
  return outcome;
}

GroupJobs& ThreadGroup::all_jobs() {
  jobs_.reserve(jobs_.size() + transfers_.requests.size());  // then all are moved, or none
  for (const PointToPointRequest& request : transfers_.requests) {
    jobs_.emplace_back(job_of(transfers_.entry, transfers_.communicator, request));
  }
  transfers_.clear();
  return jobs_;
}

void ThreadGroup::remember(const Error& error) {
  if (open() && !error_) error_ = error;
}

Status ThreadGroup::check_not_ended(const CommEntry* entry) const {
  if (std::find(ending_.begin(), ending_.end(), entry) == ending_.end()) return {};
  return Error(ErrorCode::invalid_usage, "the group destroys or aborts this communicator already")
      .with_scope(Scope::communicator)
      .with_hint("make no call on a communicator behind the one that ends it");
}

Status ThreadGroup::check_open(const CommEntry* entry) const {
  ORIEL_CHECK(check_not_ended(entry));
  if (std::find(finalizing_.begin(), finalizing_.end(), entry) == finalizing_.end()) return {};
  return Error(ErrorCode::invalid_usage, "the group finalizes this communicator already")
      .with_scope(Scope::communicator)
      .with_hint("behind ncclCommFinalize only destroy or abort the communicator");
}

Status ThreadGroup::note(Job job) {
  const CommEntry* const entry = entry_of(job).get();
  const bool ends_handle =
      std::visit([](const auto& one) { return is_end<std::decay_t<decltype(one)>>; }, job);
  ORIEL_CHECK(ends_handle ? check_not_ended(entry) : check_open(entry));
  if (ends_handle) ending_.push_back(entry);
  if (std::holds_alternative<FinalizeJob>(job)) finalizing_.push_back(entry);
  all_jobs().push_back(std::move(job));
  return {};
}

Status ThreadGroup::submit(Job job, bool& in_progress) {
  if (open()) return note(std::move(job));
  GroupJobs jobs;
  jobs.push_back(std::move(job));
  return run_jobs(jobs, in_progress);
}

Status ThreadGroup::submit(std::vector<InitJob> jobs, bool& in_progress) {
  GroupJobs apart;
  GroupJobs& list = open() ? all_jobs() : apart;
  list.reserve(list.size() + jobs.size());
  for (InitJob& job : jobs) list.push_back(std::move(job));
  return open() ? Status() : run_jobs(apart, in_progress);
}

Status ThreadGroup::submit(CollectiveJob job) {
  if (!open()) return job.communicator->calls().collective(job.request);
  CallPlan plan;
  ORIEL_CHECK(job.communicator->calls().plan_for(job.request, plan));
  ORIEL_CHECK(check_open(job.entry.get()));
  all_jobs().emplace_back(std::move(job));
  return {};
}

Status ThreadGroup::submit(const CommTable::Pin& entry, const PointToPointRequest& request) {
  ORIEL_TRY(Communicator* const communicator, entry->usable());
  ORIEL_CHECK(communicator->calls().check(request));
  if (!open()) return run_transfers(*communicator, {&request, 1});
  ORIEL_CHECK(check_open(entry.get()));
  if (jobs_.empty() && transfers_.suits(*entry, request)) {
    if (transfers_.requests.empty()) {
      transfers_.entry = entry.shared();
      transfers_.communicator = communicator;
    }
    transfers_.requests.push_back(request);
    return {};
  }
  all_jobs().emplace_back(job_of(entry.shared(), communicator, request));
  return {};
}

}  // namespace oriel::comm
