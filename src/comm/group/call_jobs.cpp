// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/call_jobs.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/owned_thread.hpp"
#include "base/try.hpp"

namespace oriel::comm {
namespace {

struct PlannedCollective {
  CollectiveJob* job;
  CallPlan plan;

  bool is_launched() const { return job->request.count > 0 || plan.only_tells; }
  Status prepare() const { return job->communicator->prepare(job->request, plan); }
  Status run() const { return job->state.outcome = job->communicator->run(job->request, plan); }
};

/// The planned calls of one communicator.
struct CommunicatorCalls {
  Communicator* communicator;
  JobState* first;               // of the first call
  std::vector<void*> streams{};  // of all calls, each once
  std::vector<PlannedCollective> collectives{};
  std::vector<PointToPointJob*> transfers{};
  std::optional<PointToPointPlan> exchange{};

  bool on_host() const { return communicator->device().backend() == kernels::Backend::host; }
  void add_stream(void* stream) {
    const bool is_known = std::find(streams.begin(), streams.end(), stream) != streams.end();
    if (!is_known) streams.push_back(stream);
  }
  Status plan_exchange() {
    std::vector<PointToPointRequest> requests;
    requests.reserve(transfers.size());
    for (const PointToPointJob* job : transfers) requests.push_back(job->request);
    ORIEL_TRY(exchange, communicator->plan_for(requests));
    return {};
  }
  Status run_exchange() const {
    if (!exchange) return {};
    return transfers.front()->state.outcome = communicator->run(*exchange);
  }
  /// Calls behind one that fails would wait for ranks that the failure may have kept from coming.
  Status run() const {
    for (const PlannedCollective& call : collectives) ORIEL_CHECK(call.run());
    return run_exchange();
  }

  /// Has the first launch wait for what all streams hold. Nothing is enqueued for one stream.
  Status join_streams() const {
    const auto launches = launch_streams();
    if (streams.size() < 2 || launches.empty()) return {};
    return first->outcome = communicator->executor().join_streams(launches.front(), streams);
  }
  /// Has all streams wait for the last launch.
  Status release_streams() const {
    const auto launches = launch_streams();
    if (streams.size() < 2 || launches.empty()) return {};
    return first->outcome = communicator->executor().release_streams(launches.back(), streams);
  }

 private:
  /// Returns the stream of each launch, in order.
  std::vector<void*> launch_streams() const {
    std::vector<void*> found;
    for (const PlannedCollective& call : collectives) {
      if (call.is_launched()) found.push_back(call.job->request.stream);
    }
    if (exchange && !exchange->is_empty()) found.push_back(exchange->stream);
    return found;
  }
};

/// All calls of a group.
class PlannedCalls {
 public:
  /// Returns whether all calls can be made; those that cannot have an outcome then.
  bool plan(GroupJobs& jobs) {
    for_each_job(jobs, [this](auto& job) {
      if constexpr (is_call<std::decay_t<decltype(job)>>) add(job);
    });
    for (CommunicatorCalls& calls : calls_) {
      if (!calls.transfers.empty()) {
        note(calls.transfers.front()->state, calls.plan_exchange());
      }
      if (calls.streams.size() > 1) {
        note(*calls.first, calls.communicator->executor().check_joined(calls.streams));
      }
    }
    return can_run_;
  }

  /// Enqueues what goes to GPUs: all collectives in the order of the calls, then the exchanges.
  Status enqueue() const {
    if (enqueued_.size() + count_exchanges() > 1) ORIEL_CHECK(prepare());
    // All before the first launch: no stream of one communicator waits for launches of another.
    ORIEL_CHECK(for_each_on_gpu(&CommunicatorCalls::join_streams));
    Status launched = launch();
    // Also behind a launch that has failed: those before it run.
    const Status released = for_each_on_gpu(&CommunicatorCalls::release_streams);
    return launched.ok() ? released : launched;
  }

  std::vector<const CommunicatorCalls*> on_host() const {
    std::vector<const CommunicatorCalls*> found;
    for (const CommunicatorCalls& calls : calls_) {
      if (calls.on_host()) found.push_back(&calls);
    }
    return found;
  }

 private:
  Status launch() const {
    for (const PlannedCollective& call : enqueued_) ORIEL_CHECK(call.run());
    return for_each_on_gpu(&CommunicatorCalls::run_exchange);
  }
  void add(CollectiveJob& job) {
    CommunicatorCalls& calls = calls_of(job);
    const auto plan = job.communicator->plan_for(job.request);
    if (!plan.ok()) return note(job.state, plan.error());
    calls.add_stream(job.request.stream);
    calls.collectives.push_back({&job, plan.value()});
    if (!calls.on_host()) enqueued_.push_back(calls.collectives.back());
  }
  void add(PointToPointJob& job) {
    CommunicatorCalls& calls = calls_of(job);
    calls.add_stream(job.request.stream);
    calls.transfers.push_back(&job);
  }
  CommunicatorCalls& calls_of(CommJob& job) {
    for (CommunicatorCalls& calls : calls_) {
      if (calls.communicator == job.communicator.get()) return calls;
    }
    calls_.push_back({job.communicator.get(), &job.state});
    return calls_.back();
  }
  void note(JobState& state, Status outcome) {
    if (outcome.ok()) return;
    can_run_ = false;
    if (state.outcome.ok()) state.outcome = std::move(outcome);
  }

  Status for_each_on_gpu(Status (CommunicatorCalls::*step)() const) const {
    for (const CommunicatorCalls& calls : calls_) {
      if (!calls.on_host()) ORIEL_CHECK((calls.*step)());
    }
    return {};
  }
  std::size_t count_exchanges() const {
    const auto counts = [](const CommunicatorCalls& c) { return !c.on_host() && c.exchange; };
    return static_cast<std::size_t>(std::count_if(calls_.begin(), calls_.end(), counts));
  }
  /// Loads all kernels: one that is loaded between two launches may wait for the first, which waits
  /// for the second.
  Status prepare() const {
    for (const PlannedCollective& call : enqueued_) {
      ORIEL_CHECK(call.job->state.outcome = call.prepare());
    }
    for (const CommunicatorCalls& calls : calls_) {
      if (calls.on_host() || !calls.exchange) continue;
      ORIEL_CHECK(calls.transfers.front()->state.outcome =
                      calls.communicator->prepare(*calls.exchange));
    }
    return {};
  }

  std::vector<CommunicatorCalls> calls_;     // in the order in which the communicators occur
  std::vector<PlannedCollective> enqueued_;  // those of GPUs, in the order of the calls
  bool can_run_ = true;
};

/// The calls of one communicator on the host, perhaps on a thread of their own.
struct HostCalls {
  const CommunicatorCalls* calls = nullptr;

  void run() const {
    try {
      static_cast<void>(calls->run());  // the failed request has the outcome
    } catch (const std::bad_alloc&) {
      calls->first->outcome = run_out_of_memory(*calls->communicator);
    }
  }
  /// Ends the waits of the other ranks, perhaps threads of this very group.
  void fail(Error reason) const {
    calls->communicator->abort(reason);
    calls->first->outcome = std::move(reason);
  }
};

/// Each communicator needs a thread, if there are several: a call ends when the other ranks have
/// come.
void run_on_host(const std::vector<const CommunicatorCalls*>& calls) {
  if (calls.empty()) return;
  std::vector<OwnedThread> threads(calls.size() - 1);
  for (std::size_t i = 0; i + 1 < calls.size(); ++i) {
    const HostCalls work{calls[i]};
    try {
      auto started = OwnedThread::start({.name = "oriel-call", .body = [work] { work.run(); }});
      if (started.ok()) {
        threads[i] = std::move(started).value();
      } else {
        work.fail(std::move(started).error().with_context("starting a group's call"));
      }
    } catch (const std::bad_alloc&) {
      calls[i]->first->outcome = run_out_of_memory(*calls[i]->communicator);
    }
  }
  HostCalls{calls.back()}.run();
  threads.clear();  // joins them
}

}  // namespace

void run_calls(GroupJobs& jobs) {
  // A call waits for the other ranks, which may be in this list: if one cannot be made, none is.
  PlannedCalls planned;
  if (planned.plan(jobs) && planned.enqueue().ok()) run_on_host(planned.on_host());
}

}  // namespace oriel::comm
