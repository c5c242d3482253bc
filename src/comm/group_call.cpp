// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group_call.hpp"

#include <algorithm>
#include <map>
#include <system_error>
#include <thread>

#include "base/log.hpp"
#include "base/try.hpp"

namespace oriel::comm {

InitJob make_init_job(const boot::UniqueId& id, int rank, int size,
                      const Result<CommunicatorOptions>& options, bool blocking,
                      const Result<Device*>& device) {
  InitJob job;
  job.request.id = id;
  job.request.rank = rank;
  job.request.size = size;
  if (!options.ok()) {
    job.request.refused = options.error();
  } else if (!device.ok()) {
    job.request.refused = device.error();
  } else {
    job.request.options = options.value();
    job.request.device = device.value();
  }
  const int ordinal = device.ok() ? device.value()->ordinal() : -1;
  job.entry = std::make_shared<CommEntry>(rank, size, ordinal, blocking);
  job.handle = comm_table().add(job.entry);
  return job;
}

namespace {

// For what this rank cannot take part in.
constexpr Duration kTellingTime = std::chrono::seconds(2);

void keep_first(Status& first, Status next) {
  if (first.ok() && !next.ok()) first = std::move(next);
}

// Forgets communicators that were to start, with their handles.
void drop(std::vector<InitJob>& inits) {
  for (InitJob& job : inits) {
    comm_table().remove(job.handle);
    *job.out = nullptr;
  }
  inits.clear();
}

// The user of a non-blocking communicator keeps its handle, which tells the error.
void refuse(InitJob& job, Error error) {
  if (job.entry->blocking()) {
    comm_table().remove(job.handle);
    *job.out = nullptr;
  }
  job.entry->finished(std::move(error));
}

/// Instead of joining: the other ranks are on their way to this call, and would wait for this one.
Task<Result<std::shared_ptr<Communicator>>> decline(EventLoop& loop, JoinRequest request) {
  Error reason =
      std::move(*request.refused).with_scope(Scope::communicator).with_origin(request.rank);
  Error told = reason;
  const Deadline deadline = Deadline::after(kTellingTime, loop.clock());
  boot::SessionOptions options;
  if (const auto settings = process_settings(); settings.ok()) {
    options.socket.ifname = settings.value()->socket_ifname;
  }
  const Status status =
      co_await boot::Session::decline(loop, request.id, request.rank, request.size, std::move(told),
                                      std::move(options), deadline);
  // Their deadlines name this rank.
  if (!status.ok()) Log(request.rank).info("{}", status.error().to_string());
  co_return reason;
}

Status run_inits(EventLoop& loop, std::vector<InitJob>& jobs) {
  std::vector<Task<Result<std::shared_ptr<Communicator>>>> tasks;
  for (InitJob& job : jobs) {
    job.entry->starting_in(loop);
    tasks.push_back(job.request.refused ? decline(loop, job.request)
                                        : Communicator::join(loop, job.request));
  }
  auto results = loop.run_all(std::move(tasks));
  Status first;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    InitJob& job = jobs[i];
    if (!results[i].ok()) {
      keep_first(first, results[i].error());
      refuse(job, std::move(results[i]).error());
    } else {
      job.entry->finished(std::move(results[i]));
    }
  }
  return first;
}

// The other ranks are on their way to these calls as well.
Status refuse_all(GroupJobs& jobs, const Error& error) {
  Status first;
  // Telling takes a loop too; perhaps there can be one a moment later. If not, the others'
  // deadlines name this rank.
  auto loop = EventLoop::create();
  for (InitJob& job : jobs.inits) {
    const JoinRequest& request = job.request;
    Error reason = Error(error).with_scope(Scope::communicator).with_origin(request.rank);
    keep_first(first, Error(reason));
    job.request.refused = reason;
    if (loop.ok()) static_cast<void>(loop.value().run(decline(loop.value(), request)));
    refuse(job, std::move(reason));
  }
  const auto abort = [&](const auto& job) {
    job.communicator->abort(error);
    keep_first(first, *job.communicator->async_error());
  };
  std::for_each(jobs.windows.begin(), jobs.windows.end(), abort);
  std::for_each(jobs.all_reduces.begin(), jobs.all_reduces.end(), abort);
  std::for_each(jobs.finalizes.begin(), jobs.finalizes.end(), abort);
  return first;
}

Status run_windows(EventLoop& loop, const std::vector<WindowJob>& jobs) {
  // One batch for each communicator, in the order of the calls.
  std::map<Communicator*, std::vector<const WindowJob*>> batches;
  std::vector<Communicator*> order;
  for (const WindowJob& job : jobs) {
    auto& batch = batches[job.communicator.get()];
    if (batch.empty()) order.push_back(job.communicator.get());
    batch.push_back(&job);
  }
  std::vector<Task<Result<std::vector<void*>>>> tasks;
  for (Communicator* communicator : order) {
    std::vector<window::WindowRequest> requests;
    for (const WindowJob* job : batches[communicator]) requests.push_back(job->request);
    tasks.push_back(communicator->register_windows(loop, std::move(requests)));
  }
  auto results = loop.run_all(std::move(tasks));
  Status first;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto& batch = batches[order[i]];
    for (std::size_t k = 0; k < batch.size(); ++k) {
      if (batch[k]->out == nullptr) continue;  // refused
      *batch[k]->out = results[i].ok() ? static_cast<ncclWindow_t>(results[i].value()[k]) : nullptr;
    }
    if (!results[i].ok()) keep_first(first, std::move(results[i]).error());
  }
  return first;
}

Error no_thread(const std::system_error& error) {
  return system_error("starting a thread for a group's call", error.code().value());
}

Status run_sequence(const std::vector<const AllReduceJob*>& jobs) {
  Status first;
  for (const AllReduceJob* job : jobs) {
    keep_first(first, job->communicator->all_reduce(job->request));
  }
  return first;
}

Status run_all_reduces(const std::vector<AllReduceJob>& jobs) {
  // On a GPU a call only enqueues; on the host it ends when the other ranks have come, so each
  // communicator needs a thread if there are several.
  std::vector<const AllReduceJob*> enqueued;
  std::map<Communicator*, std::vector<const AllReduceJob*>> inline_jobs;
  for (const AllReduceJob& job : jobs) {
    const bool on_host = job.communicator->device().backend() == kernels::Backend::host;
    (on_host ? inline_jobs[job.communicator.get()] : enqueued).push_back(&job);
  }
  Status first;
  if (enqueued.size() > 1) {
    for (const AllReduceJob* job : enqueued) {
      // What is wrong with a call is told when it is run.
      static_cast<void>(job->communicator->prepare(job->request));
    }
  }
  keep_first(first, run_sequence(enqueued));
  std::vector<Status> outcomes(inline_jobs.size());
  {
    std::vector<std::jthread> threads;
    std::size_t next = 0;
    for (const auto& [communicator, jobs_of_it] : inline_jobs) {
      const std::vector<const AllReduceJob*>& sequence = jobs_of_it;
      Status& outcome = outcomes[next++];
      if (next == inline_jobs.size()) {
        outcome = run_sequence(sequence);  // the last on this thread
        continue;
      }
      try {
        threads.emplace_back([&outcome, &sequence] { outcome = run_sequence(sequence); });
      } catch (const std::system_error& error) {
        outcome = no_thread(error);
        // The other ranks, perhaps threads of this very group, would wait for this one.
        communicator->abort(outcome.error());
      }
    }
  }
  for (Status& outcome : outcomes) keep_first(first, std::move(outcome));
  return first;
}

Status run_finalizes(EventLoop& loop, const std::vector<FinalizeJob>& jobs) {
  std::vector<Task<Status>> tasks;
  tasks.reserve(jobs.size());
  for (const FinalizeJob& job : jobs) tasks.push_back(job.communicator->finalize(loop));
  Status first;
  for (Status& status : loop.run_all(std::move(tasks))) keep_first(first, std::move(status));
  return first;
}

}  // namespace

Status run_jobs(GroupJobs jobs) {
  Status first;
  if (!jobs.inits.empty() || !jobs.windows.empty() || !jobs.finalizes.empty()) {
    auto loop = EventLoop::create();
    if (!loop.ok()) return refuse_all(jobs, loop.error());
    if (!jobs.inits.empty()) keep_first(first, run_inits(loop.value(), jobs.inits));
    if (!jobs.windows.empty()) keep_first(first, run_windows(loop.value(), jobs.windows));
    if (!jobs.all_reduces.empty()) keep_first(first, run_all_reduces(jobs.all_reduces));
    if (!jobs.finalizes.empty()) keep_first(first, run_finalizes(loop.value(), jobs.finalizes));
    return first;
  }
  if (jobs.all_reduces.size() == 1) {
    return jobs.all_reduces.front().communicator->all_reduce(jobs.all_reduces.front().request);
  }
  return run_all_reduces(jobs.all_reduces);
}

ThreadGroup& ThreadGroup::current() {
  thread_local ThreadGroup group;
  return group;
}

Status ThreadGroup::run(GroupJobs jobs, bool& in_progress) {
  const auto count = std::count_if(jobs.inits.begin(), jobs.inits.end(),
                                   [](const auto& job) { return !job.entry->blocking(); });
  if (count == 0) return run_jobs(std::move(jobs));
  if (count != static_cast<std::ptrdiff_t>(jobs.inits.size())) {
    drop(jobs.inits);
    return Error(ErrorCode::invalid_usage,
                 "a group starts blocking and non-blocking communicators");
  }
  // The caller polls ncclCommGetAsyncError. The thread ends by the deadline of set-up at the
  // latest, and sooner if a communicator is aborted; it holds all that it uses.
  auto shared = std::make_shared<GroupJobs>(std::move(jobs));
  try {
    std::thread([shared] {
      const Status status = run_jobs(std::move(*shared));
      if (status.ok()) return;
      Log().warn("a non-blocking group has failed: {}", status.error().to_string());
    }).detach();
  } catch (const std::system_error& error) {
    drop(shared->inits);
    return no_thread(error);
  }
  in_progress = true;
  return {};
}

Status ThreadGroup::end(bool& in_progress) {
  if (depth_ == 0) {
    return Error(ErrorCode::invalid_usage, "ncclGroupEnd without ncclGroupStart");
  }
  if (--depth_ > 0) return {};
  // A communicator whose other ranks may be what was refused would wait for them in vain.
  if (error_) drop_inits();
  GroupJobs jobs = std::exchange(jobs_, GroupJobs{});
  const auto refused = std::exchange(error_, std::nullopt);
  Status status = run(std::move(jobs), in_progress);
  if (refused) return *refused;
  return status;
}

void ThreadGroup::remember(const Error& error) {
  if (open() && !error_) error_ = error;
}

void ThreadGroup::drop_inits() {
  drop(jobs_.inits);
}

Status ThreadGroup::submit(InitJob job, bool& in_progress) {
  GroupJobs alone;
  GroupJobs& jobs = open() ? jobs_ : alone;
  jobs.inits.push_back(std::move(job));
  return open() ? Status() : run(std::move(alone), in_progress);
}

Status ThreadGroup::submit(WindowJob job) {
  GroupJobs alone;
  GroupJobs& jobs = open() ? jobs_ : alone;
  jobs.windows.push_back(std::move(job));
  return open() ? Status() : run_jobs(std::move(alone));
}

Status ThreadGroup::submit(AllReduceJob job) {
  if (!open()) return job.communicator->all_reduce(job.request);
  jobs_.all_reduces.push_back(std::move(job));
  return {};
}

Status ThreadGroup::submit(FinalizeJob job) {
  GroupJobs alone;
  GroupJobs& jobs = open() ? jobs_ : alone;
  jobs.finalizes.push_back(std::move(job));
  return open() ? Status() : run_jobs(std::move(alone));
}

}  // namespace oriel::comm
