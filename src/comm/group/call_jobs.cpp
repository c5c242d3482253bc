// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/call_jobs.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory_resource>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/owned_thread.hpp"
#include "base/try.hpp"

namespace oriel::comm {
namespace {

/// List in memory of the group call: a few requests need no heap allocation.
template <class T>
using List = std::pmr::vector<T>;

struct PlannedCollective {
  CollectiveJob* job;
  CallPlan plan;

  bool is_launched() const { return job->request.count > 0 || plan.only_signatures; }
  Status run() const {
    return job->state.outcome = job->communicator->calls().run(job->request, plan);
  }
};

/// Planned calls of one communicator.
struct CommunicatorCalls {
  CommunicatorCalls(CommJob& job, std::pmr::memory_resource* memory)
      : communicator(job.communicator.get()),
        first(&job.state),
        streams(memory),
        collectives(memory),
        transfers(memory) {}

  Communicator* communicator;
  JobState* first;      // state of the first call
  List<void*> streams;  // streams of all calls, each once
  List<PlannedCollective> collectives;
  List<PointToPointRequest> transfers;
  JobState* first_transfer = nullptr;
  PointToPointPlan* exchange = nullptr;

  bool on_host() const { return communicator->device().backend() == kernels::Backend::host; }
  std::vector<void*> all_streams() const { return {streams.begin(), streams.end()}; }
  void add_stream(void* stream) {
    const bool is_known = std::find(streams.begin(), streams.end(), stream) != streams.end();
    if (!is_known) streams.push_back(stream);
  }
  Status plan_exchange() {
    ORIEL_TRY(exchange, communicator->calls().plan_for(transfers));
    return {};
  }
  Status run_exchange() const {
    if (exchange == nullptr) return {};
    return first_transfer->outcome = communicator->calls().run(*exchange);
  }
  /// Runs the calls up to the first failure. Later calls would wait for ranks that the failure may
  /// have kept away.
  Status run() const {
    for (const PlannedCollective& call : collectives) ORIEL_CHECK(call.run());
    return run_exchange();
  }

  /// Makes the first launch wait for the work in all streams. Enqueues nothing for one stream.
  Status join_streams() const {
    if (streams.size() < 2) return {};
    const auto launches = launch_streams();
    if (launches.empty()) return {};
    return first->outcome = communicator->executor().join_streams(launches.front(), all_streams());
  }
  /// Makes all streams wait for the last launch. Keeps the outcome of a first call that has failed.
  Status release_streams() const {
    if (streams.size() < 2) return {};
    const auto launches = launch_streams();
    if (launches.empty()) return {};
    Status released = communicator->executor().release_streams(launches.back(), all_streams());
    if (first->outcome.ok()) first->outcome = released;
    return released;
  }

 private:
  /// Returns the stream of each launch, in order.
  std::vector<void*> launch_streams() const {
    std::vector<void*> found;
    for (const PlannedCollective& call : collectives) {
      if (call.is_launched()) found.push_back(call.job->request.stream);
    }
    if (exchange != nullptr && !exchange->is_empty()) found.push_back(exchange->stream);
    return found;
  }
};

/// Planned calls of a group.
class PlannedCalls {
 public:
  /// Returns whether all calls can run. Sets the outcome of those that cannot.
  bool plan(GroupJobs& jobs) {
    for_each_job(jobs, [this](auto& job) {
      if constexpr (is_call<std::decay_t<decltype(job)>>) add(job);
    });
    for (CommunicatorCalls& calls : calls_) {
      if (!calls.transfers.empty()) {
        note(*calls.first_transfer, calls.plan_exchange());
      }
      if (calls.streams.size() > 1) {
        note(*calls.first, calls.communicator->executor().check_joined(calls.all_streams()));
      }
    }
    order_exchanges();
    return can_run_;
  }

  /// Enqueues the GPU launches: all collectives in call order, then the exchanges in the order of
  /// their communicators' numbers.
  Status enqueue() const {
    // All joins precede the first launch, so that no stream of one communicator waits for launches
    // of another.
    ORIEL_CHECK(for_each_on_gpu(&CommunicatorCalls::join_streams));
    Status launched = launch();
    // Streams are released even after a failed launch, because the launches before it run.
    const Status released = for_each_on_gpu(&CommunicatorCalls::release_streams);
    return launched.ok() ? released : launched;
  }

  List<const CommunicatorCalls*> on_host() {
    List<const CommunicatorCalls*> found(&memory_);
    for (const CommunicatorCalls& calls : calls_) {
      if (calls.on_host()) found.push_back(&calls);
    }
    return found;
  }

 private:
  Status launch() const {
    for (const PlannedCollective& call : enqueued_) ORIEL_CHECK(call.run());
    for (const CommunicatorCalls* const calls : exchanges_) ORIEL_CHECK(calls->run_exchange());
    return {};
  }
  /// Sets exchanges_, in an order that all ranks share. The order of the calls differs among ranks,
  /// because a rank may take no part in the first message of a communicator. On one stream, two
  /// ranks would then wait for each other.
  void order_exchanges() {
    const auto has_lower_number = [](const CommunicatorCalls* a, const CommunicatorCalls* b) {
      return a->communicator->number() < b->communicator->number();
    };
    for (const CommunicatorCalls& calls : calls_) {
      if (calls.on_host() || calls.exchange == nullptr) continue;
      // Several ranks of one communicator in this thread keep their order.
      exchanges_.insert(
          std::upper_bound(exchanges_.begin(), exchanges_.end(), &calls, has_lower_number), &calls);
    }
  }
  void add(CollectiveJob& job) {
    CommunicatorCalls& calls = calls_of(job);
    CallPlan plan;
    Status planned = job.communicator->calls().plan_for(job.request, plan);
    if (!planned.ok()) return note(job.state, std::move(planned));
    calls.add_stream(job.request.stream);
    calls.collectives.push_back({&job, plan});
    if (!calls.on_host()) enqueued_.push_back(calls.collectives.back());
  }
  void add(PointToPointJob& job) {
    CommunicatorCalls& calls = calls_of(job);
    calls.add_stream(job.request.stream);
    if (calls.transfers.empty()) calls.first_transfer = &job.state;
    calls.transfers.push_back(job.request);
  }
  CommunicatorCalls& calls_of(CommJob& job) {
    for (CommunicatorCalls& calls : calls_) {
      if (calls.communicator == job.communicator.get()) return calls;
    }
    return calls_.emplace_back(job, &memory_);
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

  std::array<std::byte, 4096> buffer_;
  std::pmr::monotonic_buffer_resource memory_{buffer_.data(), buffer_.size()};
  List<CommunicatorCalls> calls_{&memory_};             // in order of first use
  List<PlannedCollective> enqueued_{&memory_};          // GPU collectives in call order
  List<const CommunicatorCalls*> exchanges_{&memory_};  // GPU exchanges in launch order
  bool can_run_ = true;
};

/// Calls of one CPU communicator, possibly on their own thread.
struct HostCalls {
  const CommunicatorCalls* calls = nullptr;

  void run() const {
    try {
      static_cast<void>(calls->run());  // the failed request holds the outcome
    } catch (const std::bad_alloc&) {
      calls->first->outcome = run_out_of_memory(*calls->communicator);
    }
  }
  /// Aborts the communicator, because other ranks wait, possibly threads of this group.
  void fail(Error reason) const {
    calls->communicator->abort(reason);
    calls->first->outcome = std::move(reason);
  }
};

/// Runs each communicator on its own thread, the last one on this thread: a call ends only when the
/// other ranks have arrived.
void run_on_host(std::span<const CommunicatorCalls* const> calls) {
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
  // A call waits for the other ranks, which may be in this list. If one call cannot run, none runs.
  PlannedCalls planned;
  if (planned.plan(jobs) && planned.enqueue().ok()) run_on_host(planned.on_host());
}

Status run_transfers(Communicator& communicator, std::span<const PointToPointRequest> requests) {
  ORIEL_TRY(PointToPointPlan* const plan, communicator.calls().plan_for(requests));
  return communicator.calls().run(*plan);
}

}  // namespace oriel::comm
