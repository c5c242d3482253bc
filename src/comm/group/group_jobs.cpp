// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/group_jobs.hpp"

#include <algorithm>
#include <atomic>
#include <map>
#include <new>
#include <utility>

#include "base/descriptor_room.hpp"
#include "base/log.hpp"
#include "base/owned_thread.hpp"
#include "base/settings.hpp"
#include "base/spare_descriptor.hpp"
#include "base/try.hpp"
#include "comm/device/rank_affinity.hpp"

namespace oriel::comm {
namespace {

// For what this rank cannot take part in.
constexpr Duration kTellingTime = std::chrono::seconds(2);

void keep_first(Status& first, Status next) {
  if (first.ok() && !next.ok()) first = std::move(next);
}

/// While it lives, aborting one of the entries ends the waits of `loop`.
class LoopScope {
 public:
  LoopScope(EventLoop& loop, std::vector<std::shared_ptr<CommEntry>> entries)
      : entries_(std::move(entries)) {
    for (const auto& entry : entries_) entry->works_in(&loop);
  }
  ~LoopScope() {
    for (const auto& entry : entries_) entry->works_in(nullptr);
  }
  LoopScope(const LoopScope&) = delete;
  LoopScope& operator=(const LoopScope&) = delete;

 private:
  std::vector<std::shared_ptr<CommEntry>> entries_;
};

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
  const Status status = co_await boot::Session::decline(
      loop, request.id, request.rank, request.size, std::move(told), std::move(options), deadline);
  // Their deadlines name this rank.
  if (!status.ok()) Log(request.rank).info("{}", status.error().to_string());
  co_return reason;
}

/// What a process does about descriptors while it starts communicators.
class DescriptorsForStart {
 public:
  explicit DescriptorsForStart(const GroupJobs& jobs)
      : starting_(jobs.inits.size() + jobs.splits.size()) {
    if (starting_.ranks == 0) return;
    constexpr std::size_t kEach = 24;  // links, and what only a start has
    const std::size_t starting = starting_.before + starting_.ranks;
    if (const auto limit = raise_descriptor_limit(starting * kEach)) {
      Log(jobs.inits.empty() ? jobs.splits.front().entry->rank() : jobs.inits.front().request.rank)
          .info("raised RLIMIT_NOFILE of this process to {}: its communicators need more", *limit);
    }
    spare_ = SpareDescriptor::hold();
  }
  DescriptorsForStart(const DescriptorsForStart&) = delete;
  DescriptorsForStart& operator=(const DescriptorsForStart&) = delete;

 private:
  /// The ranks that all threads of the process are starting.
  struct Starting {
    static inline std::atomic<std::size_t> total{0};
    explicit Starting(std::size_t count) : ranks(count), before(total.fetch_add(count)) {}
    ~Starting() { total.fetch_sub(ranks); }
    std::size_t ranks;
    std::size_t before;
  };
  Starting starting_;
  std::shared_ptr<SpareDescriptor> spare_;
};

Task<Result<std::shared_ptr<Communicator>>> start_rank(EventLoop& loop, JoinRequest request) {
  if (request.refused) co_return co_await decline(loop, std::move(request));
  co_return co_await Communicator::join(loop, std::move(request));
}

Status run_inits(EventLoop& loop, std::vector<InitJob>& jobs) {
  std::vector<std::shared_ptr<CommEntry>> entries;
  entries.reserve(jobs.size());
  for (const InitJob& job : jobs) entries.push_back(job.handle.entry());
  const LoopScope scope(loop, std::move(entries));
  std::vector<Task<Result<std::shared_ptr<Communicator>>>> tasks;
  tasks.reserve(jobs.size());
  for (const InitJob& job : jobs) tasks.push_back(start_rank(loop, job.request));
  auto results = loop.run_all(std::move(tasks));
  Status first;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    keep_first(first, jobs[i].handle.finish(std::move(results[i])));
  }
  return first;
}

/// Ends the communicators of all jobs, whose peers are on their way to these calls; the first's
/// error.
Status abort_all(const GroupJobs& jobs, const Error& error) {
  Status first;
  const auto abort = [&](const auto& job) {
    job.communicator->abort(error);
    keep_first(first, *job.communicator->async_error());
  };
  std::for_each(jobs.splits.begin(), jobs.splits.end(), abort);
  std::for_each(jobs.windows.begin(), jobs.windows.end(), abort);
  std::for_each(jobs.collectives.begin(), jobs.collectives.end(), abort);
  std::for_each(jobs.transfers.begin(), jobs.transfers.end(), abort);
  std::for_each(jobs.finalizes.begin(), jobs.finalizes.end(), abort);
  return first;
}

// There is no loop to work in, and the other ranks are on their way to these calls as well.
Status give_up(GroupJobs& jobs, const Error& error) {
  Status first;
  // Perhaps for want of a descriptor, of which telling takes one.
  const SpareDescriptor::Loan loan;
  EventLoop loop = EventLoop::without_wake();
  for (InitJob& job : jobs.inits) {
    const JoinRequest& request = job.request;
    Error reason = Error(error).with_scope(Scope::communicator).with_origin(request.rank);
    job.request.refused = reason;
    static_cast<void>(loop.run(decline(loop, request)));
    keep_first(first, job.handle.finish(std::move(reason)));
  }
  keep_first(first, abort_all(jobs, error));
  for (SplitJob& job : jobs.splits) {
    keep_first(first, end_split(job, *job.communicator->async_error()));
  }
  return first;
}

/// The windows that one communicator registers at once.
struct WindowBatch {
  Communicator* communicator;
  std::vector<WindowJob*> jobs;
};

/// In the order of the calls.
std::vector<WindowBatch> make_batches(std::vector<WindowJob>& jobs) {
  std::map<Communicator*, std::size_t> places;
  std::vector<WindowBatch> batches;
  for (WindowJob& job : jobs) {
    Communicator* const communicator = job.communicator.get();
    const auto place = places.try_emplace(communicator, batches.size()).first->second;
    if (place == batches.size()) batches.push_back({communicator, {}});
    batches[place].jobs.push_back(&job);
  }
  return batches;
}

using WindowTask = Task<Result<std::vector<void*>>>;

std::vector<WindowTask> make_tasks(EventLoop& loop, const std::vector<WindowBatch>& batches) {
  std::vector<WindowTask> tasks;
  for (const WindowBatch& batch : batches) {
    std::vector<window::WindowRequest> requests;
    for (const WindowJob* job : batch.jobs) requests.push_back(job->request);
    tasks.push_back(batch.communicator->register_windows(loop, std::move(requests)));
  }
  return tasks;
}

Status run_windows(EventLoop& loop, std::vector<WindowJob>& jobs) {
  const auto batches = make_batches(jobs);
  auto tasks = make_tasks(loop, batches);
  auto results = loop.run_all(std::move(tasks));
  Status first;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto& batch = batches[i].jobs;
    for (std::size_t k = 0; k < batch.size() && results[i].ok(); ++k) {
      batch[k]->registered = results[i].value()[k];
    }
    if (!results[i].ok()) keep_first(first, std::move(results[i]).error());
  }
  return first;
}

void store_windows(const std::vector<WindowJob>& jobs) {
  for (const WindowJob& job : jobs) {
    if (job.out != nullptr) *job.out = static_cast<ncclWindow_t>(job.registered);
  }
}

Status run_finalizes(EventLoop& loop, const std::vector<FinalizeJob>& jobs) {
  std::vector<Task<Status>> tasks;
  tasks.reserve(jobs.size());
  for (const FinalizeJob& job : jobs) {
    tasks.push_back(job.communicator->finalize(loop, job.refused));
  }
  Status first;
  for (Status& status : loop.run_all(std::move(tasks))) keep_first(first, std::move(status));
  return first;
}

Status carry_out(EventLoop& loop, GroupJobs& jobs) {
  Status first;
  if (!jobs.inits.empty()) keep_first(first, run_inits(loop, jobs.inits));
  if (!jobs.splits.empty()) keep_first(first, run_splits(loop, jobs.splits));
  if (!jobs.windows.empty()) keep_first(first, run_windows(loop, jobs.windows));
  keep_first(first, run_calls(jobs.collectives, jobs.transfers));
  if (!jobs.finalizes.empty()) keep_first(first, run_finalizes(loop, jobs.finalizes));
  return first;
}

/// The work of one non-blocking communicator.
struct Background {
  explicit Background(std::shared_ptr<CommEntry> given) : entry(std::move(given)) {}
  ~Background() { end({}); }  // where memory has run out the communicator has the error
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  std::shared_ptr<CommEntry> entry;
  GroupJobs jobs;
  bool begun = false;  // on a communicator that had started

  bool starts() const { return !jobs.inits.empty(); }
  /// Null for a start that has been refused.
  const Device* device() const {
    if (starts()) return jobs.inits.front().request.device;
    if (!jobs.splits.empty()) return &jobs.splits.front().communicator->device();
    return jobs.windows.empty() ? &jobs.finalizes.front().communicator->device()
                                : &jobs.windows.front().communicator->device();
  }

  Status begin() {
    if (!starts()) ORIEL_CHECK(entry->begin_work());
    begun = !starts();
    return {};
  }
  void end(Status outcome) {
    if (std::exchange(begun, false)) {
      entry->end_work(std::move(outcome), [&] { store_windows(jobs.windows); });
    }
    jobs = {};  // a start without an outcome has failed
  }
  Status carry_out_alone() {
    const DescriptorsForStart descriptors(jobs);
    auto loop = EventLoop::create();
    if (!loop.ok()) return give_up(jobs, loop.error());
    const LoopScope scope(loop.value(), {entry});
    return carry_out(loop.value(), jobs);
  }
  /// No thread could be had.
  Status fail(Error reason) {
    static_cast<void>(give_up(jobs, reason));
    end(Error(reason));
    return reason;
  }
  void run() {
    if (const Device* near = device(); near != nullptr) work_near(*near);
    Status outcome = carry_out_alone();
    if (!outcome.ok())
      Log(entry->rank()).warn("in the background: {}", outcome.error().to_string());
    end(std::move(outcome));
  }
};

Status start(const std::shared_ptr<Background>& work) {
  ORIEL_CHECK(work->begin());
  for (InitJob& job : work->jobs.inits) job.handle.leave_to_user();
  for (SplitJob& job : work->jobs.splits) {
    if (job.handle) job.handle->leave_to_user();
  }
  // The caller polls ncclCommGetAsyncError. The thread holds all that it uses, and ends by the
  // deadline of set-up, or sooner if the communicator is aborted.
  auto thread = OwnedThread::start({
      .name = "oriel-group",
      .body = [work] { work->run(); },
      .stop = [work] { work->entry->abort(Error(ErrorCode::aborted, "the process ends")); },
      .failed = [work](const Error& reason) { static_cast<void>(abort_all(work->jobs, reason)); },
  });
  if (!thread.ok()) {
    return work->fail(std::move(thread).error().with_context("starting a group's call"));
  }
  thread->leave_to_library();
  return {};
}

/// The background work of `entry` among `works`, new if it has none yet.
GroupJobs& jobs_of(std::vector<std::shared_ptr<Background>>& works,
                   const std::shared_ptr<CommEntry>& entry) {
  for (const auto& work : works) {
    if (work->entry == entry) return work->jobs;
  }
  works.push_back(std::make_shared<Background>(entry));
  return works.back()->jobs;
}

Status run_here(GroupJobs& jobs) {
  const bool sets_up = !jobs.inits.empty() || !jobs.splits.empty() || !jobs.windows.empty();
  if (!sets_up && jobs.finalizes.empty()) return run_calls(jobs.collectives, jobs.transfers);
  const DescriptorsForStart descriptors(jobs);
  auto loop = EventLoop::create();
  if (!loop.ok()) return give_up(jobs, loop.error());
  Status first = carry_out(loop.value(), jobs);
  store_windows(jobs.windows);
  return first;
}

/// Moves starts, splits and calls from `jobs`, and copies the others: `here` has what does not go
/// on in the background.
std::vector<std::shared_ptr<Background>> divide(GroupJobs& jobs, GroupJobs& here) {
  std::vector<std::shared_ptr<Background>> works;
  for (InitJob& job : jobs.inits) {
    const auto entry = job.handle.entry();
    (entry->blocking() ? here : jobs_of(works, entry)).inits.push_back(std::move(job));
  }
  jobs.inits.clear();
  const auto stays = [&](const auto& job) {
    const auto is_of_job = [&](const auto& call) { return call.communicator == job.communicator; };
    return job.entry->blocking() ||
           std::any_of(jobs.collectives.begin(), jobs.collectives.end(), is_of_job) ||
           std::any_of(jobs.transfers.begin(), jobs.transfers.end(), is_of_job);
  };
  for (SplitJob& job : jobs.splits) {
    (stays(job) ? here : jobs_of(works, job.entry)).splits.push_back(std::move(job));
  }
  jobs.splits.clear();
  for (const WindowJob& job : jobs.windows) {
    (stays(job) ? here : jobs_of(works, job.entry)).windows.push_back(job);
  }
  for (const FinalizeJob& job : jobs.finalizes) {
    (stays(job) ? here : jobs_of(works, job.entry)).finalizes.push_back(job);
  }
  here.collectives = std::move(jobs.collectives);
  here.transfers = std::move(jobs.transfers);
  return works;
}

}  // namespace

void refuse(GroupJobs& jobs, const Error& error) {
  const auto refuse_one = [&error](std::optional<Error>& refused) {
    if (!refused) refused = error;
  };
  for (InitJob& job : jobs.inits) {
    job.handle.end();
    refuse_one(job.request.refused);
  }
  for (SplitJob& job : jobs.splits) {
    if (job.handle) job.handle->end();
    refuse_one(job.request.refused);
  }
  for (WindowJob& job : jobs.windows) refuse_one(job.request.refused);
  for (FinalizeJob& job : jobs.finalizes) refuse_one(job.refused);
  jobs.collectives.clear();
  jobs.transfers.clear();
}

Status run_jobs(GroupJobs jobs, bool& in_progress) {
  GroupJobs here;
  try {
    Status first;
    for (const auto& work : divide(jobs, here)) {
      const Status started = start(work);
      in_progress = in_progress || started.ok();
      keep_first(first, started);
    }
    keep_first(first, run_here(here));
    return first;
  } catch (const std::bad_alloc&) {
    const Error error(ErrorCode::system, "out of memory");
    static_cast<void>(abort_all(jobs, error));
    static_cast<void>(abort_all(here, error));
    throw;
  }
}

}  // namespace oriel::comm
