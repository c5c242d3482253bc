// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/group_jobs.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/free_descriptors.hpp"
#include "base/log.hpp"
#include "base/owned_thread.hpp"
#include "base/spare_descriptor.hpp"
#include "base/try.hpp"
#include "comm/device/rank_affinity.hpp"
#include "comm/group/call_jobs.hpp"
#include "comm/group/end_jobs.hpp"
#include "comm/group/set_up_jobs.hpp"

namespace oriel::comm {
namespace {

template <class Job>
using KindOf = std::decay_t<Job>;

/// Raises the descriptor limit and holds a spare descriptor while the process starts communicators.
class DescriptorsForStart {
 public:
  explicit DescriptorsForStart(GroupJobs& jobs)
      : starting_(static_cast<std::size_t>(std::count_if(jobs.begin(), jobs.end(), makes_rank))) {
    if (starting_.ranks == 0) return;
    constexpr std::size_t kEach = 24;  // links, and descriptors that only a start uses
    const std::size_t starting = starting_.before + starting_.ranks;
    if (const auto limit = raise_descriptor_limit(starting * kEach)) {
      const auto first = std::find_if(jobs.begin(), jobs.end(), makes_rank);
      Log(entry_of(*first)->rank())
          .info("raised RLIMIT_NOFILE of this process to {}: its communicators need more", *limit);
    }
    spare_ = SpareDescriptor::hold();
  }
  DescriptorsForStart(const DescriptorsForStart&) = delete;
  DescriptorsForStart& operator=(const DescriptorsForStart&) = delete;

 private:
  static bool makes_rank(const Job& job) {
    return std::holds_alternative<InitJob>(job) || std::holds_alternative<SplitJob>(job);
  }
  /// Counts the ranks that all threads of the process are starting.
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

/// Aborts the communicators of all requests, except starts and requests that end a handle. Their
/// peers have entered these calls.
void abort_all(GroupJobs& jobs, const Error& error) {
  for_each_job(jobs, [&](auto& job) {
    using Kind = KindOf<decltype(job)>;
    if constexpr (!is_start<Kind> && !is_end<Kind>) {
      if (job.communicator == nullptr) return;  // moved from
      job.communicator->abort(error);
      job.state.outcome = *job.communicator->async_error();
    }
  });
}

// Fails all requests because no event loop or thread could be made. The other ranks have entered
// these calls, so they are informed.
void give_up(GroupJobs& jobs, const Error& error) {
  // The cause may be a lack of descriptors; informing the other ranks takes one.
  const SpareDescriptor::Release release;
  EventLoop loop = EventLoop::without_wake();
  for (InitJob* const job : jobs_of_kind<InitJob>(jobs)) {
    Error reason = Error(error).with_scope(Scope::communicator).with_origin(job->request.rank);
    job->request.refused = reason;
    static_cast<void>(loop.run(decline(loop, job->request)));
    job->state.outcome = job->handle.finish(std::move(reason));
  }
  abort_all(jobs, error);
  for (SplitJob* const job : jobs_of_kind<SplitJob>(jobs)) {
    conclude(*job, *job->communicator->async_error());
  }
}

void store_windows(GroupJobs& jobs) {
  for (const WindowJob* job : jobs_of_kind<WindowJob>(jobs)) {
    if (job->out != nullptr) *job->out = static_cast<ncclWindow_t>(job->registered);
  }
}

void run_finalizes(GroupJobs& jobs) {
  for (FinalizeJob* const job : jobs_of_kind<FinalizeJob>(jobs)) {
    job->state.outcome = job->communicator->finalize();
  }
}

void carry_out(EventLoop& loop, GroupJobs& jobs) {
  run_set_up(loop, jobs);
  run_calls(jobs);
  run_finalizes(jobs);
}

/// Background work of one non-blocking communicator.
struct Background {
  explicit Background(std::shared_ptr<CommEntry> given) : entry(std::move(given)) {}
  ~Background() { end({}); }  // acts only if memory ran out: the communicator has the error
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  std::shared_ptr<CommEntry> entry;
  GroupJobs jobs;        // at least one until end()
  bool started = false;  // entry->begin_work() has succeeded

  bool starts() const { return std::holds_alternative<InitJob>(jobs.front()); }
  /// Returns the device of the first request; null for a refused start.
  const Device* device() const {
    return std::visit(
        [](const auto& job) -> const Device* {
          if constexpr (is_start<KindOf<decltype(job)>>) {
            return job.request.device;
          } else {
            return &job.communicator->device();
          }
        },
        jobs.front());
  }

  Status begin() {
    if (!starts()) ORIEL_CHECK(entry->begin_work());
    started = !starts();
    return {};
  }
  void end(Status outcome) {
    if (std::exchange(started, false)) {
      entry->end_work(std::move(outcome), [&] { store_windows(jobs); });
    }
    jobs.clear();  // a start without an outcome fails
  }
  void carry_out_alone() {
    const DescriptorsForStart descriptors(jobs);
    auto loop = EventLoop::create();
    if (!loop.ok()) return give_up(jobs, loop.error());
    const LoopScope scope(loop.value(), entry);
    carry_out(loop.value(), jobs);
  }
  /// Fails the requests because no thread could be started.
  Status fail(Error reason) {
    give_up(jobs, reason);
    end(Error(reason));
    return reason;
  }
  void run() {
    if (const Device* near = device(); near != nullptr) work_near(*near);
    carry_out_alone();
    FirstFailure first;
    first.note(jobs);
    Status outcome = first.take();
    if (!outcome.ok()) {
      Log(entry->rank())
          .warn(
              "a call in the background has failed: {}; hint: ncclCommGetAsyncError returns the "
              "code; abort the communicator unless the call can be corrected",
              outcome.error().to_string());
    }
    end(std::move(outcome));
  }
};

Status start(const std::shared_ptr<Background>& work) {
  ORIEL_CHECK(work->begin());
  for (InitJob* const job : jobs_of_kind<InitJob>(work->jobs)) job->handle.leave_to_user();
  for (SplitJob* const job : jobs_of_kind<SplitJob>(work->jobs)) {
    if (job->handle) job->handle->leave_to_user();
  }
  // The caller polls ncclCommGetAsyncError. The thread holds everything that it uses. It ends by
  // the deadline of set-up, or earlier if the communicator is aborted.
  auto thread = OwnedThread::start({
      .name = "oriel-group",
      .body = [work] { work->run(); },
      .stop = [work] { work->entry->abort(Error(ErrorCode::aborted, "the process ends")); },
      .failed = [work](const Error& reason) { abort_all(work->jobs, reason); },
  });
  if (!thread.ok()) {
    return work->fail(std::move(thread).error().with_context("starting a group's call"));
  }
  thread->leave_to_library();
  return {};
}

bool are_calls(const GroupJobs& jobs) {
  const auto calls = [](const Job& job) {
    return std::visit([](const auto& one) { return is_call<KindOf<decltype(one)>>; }, job);
  };
  return std::all_of(jobs.begin(), jobs.end(), calls);
}

void run_here(GroupJobs& jobs) {
  if (are_calls(jobs)) return run_calls(jobs);
  const DescriptorsForStart descriptors(jobs);
  auto loop = EventLoop::create();
  if (!loop.ok()) return give_up(jobs, loop.error());
  carry_out(loop.value(), jobs);
  store_windows(jobs);
}

/// Divides the requests of a group by where they run. Each list is in call order.
struct Division {
  std::vector<std::shared_ptr<Background>> works;
  std::size_t started = 0;  // number of `works` that have been started
  GroupJobs here;
  GroupJobs ends;

  /// Moves all requests from `jobs`. Requests on a blocking communicator, or on a communicator with
  /// calls in the group, stay here.
  void take(GroupJobs& jobs) {
    std::vector<const CommEntry*> calling;
    for_each_job(jobs, [&](const auto& job) {
      if constexpr (is_call<KindOf<decltype(job)>>) calling.push_back(job.entry.get());
    });
    for (Job& job : jobs) {
      const auto& entry = entry_of(job);
      const bool stays = entry->blocking() ||
                         std::find(calling.begin(), calling.end(), entry.get()) != calling.end();
      const bool ends_handle =
          std::visit([](const auto& one) { return is_end<KindOf<decltype(one)>>; }, job);
      GroupJobs& list = ends_handle ? ends : stays ? here : background_of(entry);
      list.push_back(std::move(job));
    }
  }
  void abort_unfinished(const Error& error) {
    for (; started < works.size(); ++started) abort_all(works[started]->jobs, error);
    abort_all(here, error);
  }

 private:
  GroupJobs& background_of(const std::shared_ptr<CommEntry>& entry) {
    for (const auto& work : works) {
      if (work->entry == entry) return work->jobs;
    }
    works.push_back(std::make_shared<Background>(entry));
    return works.back()->jobs;
  }
};

}  // namespace

void refuse(GroupJobs& jobs, const Error& error) {
  GroupJobs kept;
  kept.reserve(jobs.size());
  for (Job& job : jobs) {
    const bool stays = std::visit(
        [&error](auto& one) {
          using Kind = KindOf<decltype(one)>;
          std::optional<Error>* refused = nullptr;
          if constexpr (is_start<Kind>) one.handle.end();
          if constexpr (std::is_same_v<Kind, SplitJob>) {
            if (one.handle) one.handle->end();
          }
          if constexpr (sets_up<Kind>) refused = &one.request.refused;
          if (refused != nullptr && !*refused) *refused = error;
          return !is_call<Kind> && !std::is_same_v<Kind, FinalizeJob>;
        },
        job);
    if (stays) kept.push_back(std::move(job));
  }
  jobs.swap(kept);
}

Status run_jobs(GroupJobs& jobs, bool& in_progress) {
  for (std::size_t i = 0; i < jobs.size(); ++i) state_of(jobs[i]).number = i;
  Division division;
  try {
    FirstFailure first;
    if (are_calls(jobs)) {  // nothing to divide
      run_calls(jobs);
      first.note(jobs);
      return first.take();
    }
    division.take(jobs);
    for (const auto& work : division.works) {
      const std::size_t number = state_of(work->jobs.front()).number;
      Status started = start(work);
      ++division.started;
      in_progress = in_progress || started.ok();
      first.note({number, std::move(started)});
    }
    run_here(division.here);
    first.note(division.here);
    division.here.clear();  // an end frees memory that nobody else holds
    run_ends(division.ends);
    first.note(division.ends);
    return first.take();
  } catch (const std::bad_alloc&) {
    const Error error(ErrorCode::system, "out of memory");
    abort_all(jobs, error);
    division.abort_unfinished(error);
    throw;
  }
}

}  // namespace oriel::comm
