// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/call_jobs.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "base/owned_thread.hpp"
#include "base/try.hpp"

namespace oriel::comm {
namespace {

struct PlannedCollective {
  const CollectiveJob* job;
  CallPlan plan;

  Status prepare() const { return job->communicator->prepare(job->request, plan); }
  Status run() const { return job->communicator->run(job->request, plan); }
};

/// The planned calls of one communicator.
struct CommunicatorCalls {
  Communicator* communicator = nullptr;
  std::vector<PlannedCollective> collectives;
  std::vector<PointToPointRequest> requests;
  std::optional<PointToPointPlan> transfers;

  bool on_host() const { return communicator->device().backend() == kernels::Backend::host; }
  /// Calls behind one that fails would wait for ranks that the failure may have kept from coming.
  Status run() const {
    for (const PlannedCollective& call : collectives) ORIEL_CHECK(call.run());
    return transfers ? communicator->run(*transfers) : Status();
  }
};

/// All calls of a group.
class PlannedCalls {
 public:
  Status plan(const std::vector<CollectiveJob>& collectives,
              const std::vector<PointToPointJob>& transfers) {
    for (const CollectiveJob& job : collectives) {
      ORIEL_TRY(const auto plan, job.communicator->plan_for(job.request));
      CommunicatorCalls& calls = calls_of(job.communicator.get());
      calls.collectives.push_back({&job, plan});
      if (!calls.on_host()) enqueued_.push_back({&job, plan});
    }
    for (const PointToPointJob& job : transfers) {
      calls_of(job.communicator.get()).requests.push_back(job.request);
    }
    for (CommunicatorCalls& calls : calls_) {
      if (calls.requests.empty()) continue;
      ORIEL_TRY(calls.transfers, calls.communicator->plan_for(calls.requests));
    }
    return {};
  }

  /// Enqueues what goes to GPUs: all collectives in the order of the calls, then the exchanges.
  Status enqueue() const {
    const auto on_gpu = [](const CommunicatorCalls& calls) { return !calls.on_host(); };
    const auto transfers = std::count_if(
        calls_.begin(), calls_.end(),
        [&](const CommunicatorCalls& calls) { return on_gpu(calls) && calls.transfers; });
    // A kernel that is loaded between two launches may wait for the first, which waits for the
    // second.
    if (enqueued_.size() + static_cast<std::size_t>(transfers) > 1) ORIEL_CHECK(prepare());
    for (const PlannedCollective& call : enqueued_) ORIEL_CHECK(call.run());
    for (const CommunicatorCalls& calls : calls_) {
      if (on_gpu(calls) && calls.transfers) {
        ORIEL_CHECK(calls.communicator->run(*calls.transfers));
      }
    }
    return {};
  }

  std::vector<const CommunicatorCalls*> on_host() const {
    std::vector<const CommunicatorCalls*> found;
    for (const CommunicatorCalls& calls : calls_) {
      if (calls.on_host()) found.push_back(&calls);
    }
    return found;
  }

 private:
  CommunicatorCalls& calls_of(Communicator* communicator) {
    for (CommunicatorCalls& calls : calls_) {
      if (calls.communicator == communicator) return calls;
    }
    calls_.push_back({communicator, {}, {}, {}});
    return calls_.back();
  }
  Status prepare() const {
    for (const PlannedCollective& call : enqueued_) ORIEL_CHECK(call.prepare());
    for (const CommunicatorCalls& calls : calls_) {
      if (!calls.on_host() && calls.transfers) {
        ORIEL_CHECK(calls.communicator->prepare(*calls.transfers));
      }
    }
    return {};
  }

  std::vector<CommunicatorCalls> calls_;     // in the order in which the communicators occur
  std::vector<PlannedCollective> enqueued_;  // those of GPUs, in the order of the calls
};

/// The calls of one communicator on the host, perhaps on a thread of their own.
struct HostCalls {
  const CommunicatorCalls* calls = nullptr;
  Status outcome{};

  void run() {
    try {
      outcome = calls->run();
    } catch (const std::bad_alloc&) {
      outcome = calls->communicator->run_out_of_memory();
    }
  }
  /// Ends the waits of the other ranks, perhaps threads of this very group.
  void fail(Error reason) {
    calls->communicator->abort(reason);
    outcome = std::move(reason);
  }
};

/// Each communicator needs a thread, if there are several: a call ends when the other ranks have
/// come.
Status run_on_host(const std::vector<const CommunicatorCalls*>& calls) {
  if (calls.empty()) return {};
  std::vector<HostCalls> works(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) works[i].calls = calls[i];
  std::vector<OwnedThread> threads(works.size() - 1);
  for (std::size_t i = 0; i + 1 < works.size(); ++i) {
    HostCalls& work = works[i];
    try {
      auto started = OwnedThread::start({.name = "oriel-call", .body = [&work] { work.run(); }});
      if (started.ok()) {
        threads[i] = std::move(started).value();
      } else {
        work.fail(std::move(started).error().with_context("starting a group's call"));
      }
    } catch (const std::bad_alloc&) {
      work.outcome = work.calls->communicator->run_out_of_memory();
    }
  }
  works.back().run();
  threads.clear();  // joins them
  Status first;
  for (HostCalls& work : works) {
    if (first.ok() && !work.outcome.ok()) first = std::move(work.outcome);
  }
  return first;
}

}  // namespace

Status run_calls(const std::vector<CollectiveJob>& collectives,
                 const std::vector<PointToPointJob>& transfers) {
  // A call waits for the other ranks, which may be in this list: if one cannot be made, none is.
  PlannedCalls planned;
  ORIEL_CHECK(planned.plan(collectives, transfers));
  ORIEL_CHECK(planned.enqueue());
  return run_on_host(planned.on_host());
}

}  // namespace oriel::comm
