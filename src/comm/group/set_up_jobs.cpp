// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/group/set_up_jobs.hpp"

#include <chrono>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/settings.hpp"

namespace oriel::comm {
namespace {

// Time limit for informing the other ranks that this rank does not join.
constexpr Duration kNoticeTime = std::chrono::seconds(2);

Task<Result<std::shared_ptr<Communicator>>> start_rank(EventLoop& loop, JoinRequest request) {
  if (request.refused) co_return co_await decline(loop, std::move(request));
  co_return co_await Communicator::join(loop, std::move(request));
}

Task<Status> run_start(EventLoop& loop, InitJob& job) {
  const LoopScope scope(loop, job.handle.entry());
  JoinRequest request = job.request;
  auto outcome = co_await start_rank(loop, std::move(request));
  job.state.outcome = job.handle.finish(std::move(outcome));
  co_return Status();
}

/// One split, or all windows that a group registers with one communicator.
struct Step {
  SplitJob* split = nullptr;
  std::vector<WindowJob*> windows{};
};

/// Set-up requests on one communicator, in call order.
struct Sequence {
  std::shared_ptr<Communicator> communicator;
  std::vector<Step> steps{};
};

Sequence& sequence_of(std::vector<Sequence>& sequences, const CommJob& job) {
  for (Sequence& sequence : sequences) {
    if (sequence.communicator == job.communicator) return sequence;
  }
  sequences.push_back({job.communicator});
  return sequences.back();
}

std::vector<Sequence> sequences_of(GroupJobs& jobs) {
  std::vector<Sequence> sequences;
  for_each_job(jobs, [&](auto& job) {
    using Kind = std::decay_t<decltype(job)>;
    if constexpr (std::is_same_v<Kind, SplitJob>) {
      sequence_of(sequences, job).steps.push_back({.split = &job});
    } else if constexpr (std::is_same_v<Kind, WindowJob>) {
      auto& steps = sequence_of(sequences, job).steps;
      for (Step& step : steps) {
        if (step.split == nullptr) return step.windows.push_back(&job);
      }
      steps.push_back({.windows = {&job}});
    }
  });
  return sequences;
}

Task<void> register_together(EventLoop& loop, std::shared_ptr<Communicator> communicator,
                             const std::vector<WindowJob*>& jobs) {
  std::vector<window::WindowRequest> requests;
  requests.reserve(jobs.size());
  for (const WindowJob* job : jobs) requests.push_back(job->request);
  auto registered = co_await communicator->register_windows(loop, std::move(requests));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (registered.ok()) {
      jobs[i]->registered = registered.value()[i];
    } else {
      jobs[i]->state.outcome = registered.error();
    }
  }
}

Task<Status> run_sequence(EventLoop& loop, Sequence sequence) {
  for (const Step& step : sequence.steps) {
    if (step.split != nullptr) {
      co_await run_split(loop, *step.split);
    } else {
      std::shared_ptr<Communicator> communicator = sequence.communicator;
      co_await register_together(loop, std::move(communicator), step.windows);
    }
  }
  co_return Status();
}

}  // namespace

Task<Result<std::shared_ptr<Communicator>>> decline(EventLoop& loop, JoinRequest request) {
  Error reason =
      std::move(*request.refused).with_scope(Scope::communicator).with_origin(request.rank);
  Error reported = reason;
  const Deadline deadline = Deadline::after(kNoticeTime, loop.clock());
  boot::SessionOptions options;
  if (const auto settings = process_settings(); settings.ok()) {
    options.socket.ifname = settings.value()->socket_ifname;
  }
  const Status status =
      co_await boot::Session::decline(loop, request.id, request.rank, request.size,
                                      std::move(reported), std::move(options), deadline);
  // The other ranks name this rank when their deadlines expire.
  if (!status.ok()) Log(request.rank).info("{}", status.error().to_string());
  co_return reason;
}

void run_set_up(EventLoop& loop, GroupJobs& jobs) {
  std::vector<Task<Status>> tasks;
  for (InitJob* const job : jobs_of_kind<InitJob>(jobs)) tasks.push_back(run_start(loop, *job));
  for (Sequence& sequence : sequences_of(jobs)) {
    tasks.push_back(run_sequence(loop, std::move(sequence)));
  }
  static_cast<void>(loop.run_all(std::move(tasks)));
}

}  // namespace oriel::comm
