// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <type_traits>
#include <variant>
#include <vector>

#include "nccl.h"
#include "oriel/error.hpp"

#include "comm/group/comm_job.hpp"
#include "comm/group/init_job.hpp"
#include "comm/group/split_job.hpp"
#include "comm/request/call_request.hpp"
#include "window/registration/window_manager.hpp"

/// Requests of a group: one ordered list per thread.
namespace oriel::comm {

struct WindowJob : CommJob {
  window::WindowRequest request{};
  ncclWindow_t* out = nullptr;
  void* registered = nullptr;  ///< registered handle, not yet stored at `out`
};

struct CollectiveJob : CommJob {
  CollectiveRequest request{};
};

struct PointToPointJob : CommJob {
  PointToPointRequest request{};
};

/// Finalizes a communicator.
struct FinalizeJob : CommJob {};

/// Destroys a handle.
struct DestroyJob : CommJob {
  ncclComm_t handle = nullptr;
};

/// Aborts the communicator of a handle and frees it.
struct AbortJob : CommJob {
  ncclComm_t handle = nullptr;
};

using Job = std::variant<InitJob, SplitJob, WindowJob, CollectiveJob, PointToPointJob, FinalizeJob,
                         DestroyJob, AbortJob>;
/// Requests in call order.
using GroupJobs = std::vector<Job>;

template <class Kind>
inline constexpr bool is_end = std::is_same_v<Kind, DestroyJob> || std::is_same_v<Kind, AbortJob>;
template <class Kind>
inline constexpr bool is_call =
    std::is_same_v<Kind, CollectiveJob> || std::is_same_v<Kind, PointToPointJob>;
template <class Kind>
inline constexpr bool is_start = std::is_same_v<Kind, InitJob>;
template <class Kind>
inline constexpr bool sets_up =
    is_start<Kind> || std::is_same_v<Kind, SplitJob> || std::is_same_v<Kind, WindowJob>;

/// Calls `act` with each request as its own type, in call order.
template <class Jobs, class Act>
void for_each_job(Jobs& jobs, const Act& act) {
  for (auto& job : jobs) std::visit(act, job);
}

/// Returns the requests of one type, in call order.
template <class Kind>
std::vector<Kind*> jobs_of_kind(GroupJobs& jobs) {
  std::vector<Kind*> found;
  for (Job& job : jobs) {
    if (auto* const one = std::get_if<Kind>(&job)) found.push_back(one);
  }
  return found;
}

inline JobState& state_of(Job& job) {
  return std::visit([](auto& one) -> JobState& { return one.state; }, job);
}

/// Returns the entry of the handle that a request starts or uses.
inline const std::shared_ptr<CommEntry>& entry_of(const Job& job) {
  return std::visit(
      [](const auto& one) -> const std::shared_ptr<CommEntry>& {
        if constexpr (is_start<std::decay_t<decltype(one)>>) {
          return one.handle.entry();
        } else {
          return one.entry;
        }
      },
      job);
}

/// Keeps the failure that is first in call order.
class FirstFailure {
 public:
  void note(JobState state) {
    if (state.outcome.ok() || (!first_.ok() && number_ < state.number)) return;
    number_ = state.number;
    first_ = std::move(state.outcome);
  }
  void note(GroupJobs& jobs) {
    for (Job& job : jobs) note(state_of(job));
  }
  Status take() { return std::move(first_); }

 private:
  std::size_t number_ = 0;
  Status first_;
};

}  // namespace oriel::comm
