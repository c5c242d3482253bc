// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "oriel/error.hpp"

#include "comm/communicator/communicator_parts.hpp"
#include "comm/communicator/exchange_planner.hpp"
#include "comm/communicator/failure_watch.hpp"
#include "comm/request/call_request.hpp"
#include "kernels/plan/arguments.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

namespace oriel::comm {

/// Plan of one collective. It runs by an algorithm of a single LSA team, as an exchange, as an
/// exchange whose data copy engines move, or among LSA teams.
struct CallPlan {
  /// Not defaulted, like that of AllReduceArguments: a defaulted one clears the whole object first.
  CallPlan() {}  // NOLINT(modernize-use-equals-default)

  kernels::Plan team;
  std::optional<kernels::HierarchyPlan> among_teams;
  bool by_exchange = false;
  /// ExchangePlanner::copy_engine_offset() if copy engines move the data, else kNoOffset.
  std::uint64_t copy_engine_offset = kernels::kNoOffset;
  /// Call of no elements on GPUs of one team: its kernel only exchanges signatures, and `team` has
  /// no CTAs.
  bool only_signatures = false;
};

/// Runs the collectives, sends and receives of one communicator. It checks a call, chooses a plan
/// from facts that all ranks share, and passes the call to the device. Local. On CPUs run() returns
/// when the call has ended. One thread at a time.
class CallRunner {
 public:
  /// `parts` and `failure` must outlive this object.
  CallRunner(CommunicatorParts& parts, FailureWatch& failure) : parts_(parts), failure_(failure) {}

  Status collective(const CollectiveRequest& request);
  /// First step of collective(): checks the call and chooses its plan, without side effects. Sets
  /// `plan`, which must be new. An output parameter saves small calls the copy that a Result would
  /// need.
  Status plan_for(const CollectiveRequest& request, CallPlan& plan) const;
  Status run(const CollectiveRequest& request, const CallPlan& plan);

  /// Checks one send or receive as far as possible without the other requests of its group.
  Status check(const PointToPointRequest& request) const;
  /// Plans the sends and receives of a group, which run as one exchange. check() has accepted each.
  /// The plan refers to `requests`, runs once, and is valid until the next call.
  Result<PointToPointPlan*> plan_for(std::span<const PointToPointRequest> requests);
  Status run(PointToPointPlan& plan);

  /// Returns the view of the scratch memory for the algorithms among LSA teams.
  device::CommView scratch_view() const;

 private:
  bool on_host() const { return comm::on_host(parts_); }
  int rank() const { return parts_.session->rank(); }
  int size() const { return parts_.session->size(); }
  /// Returns the launches and copies of a collective that runs as an exchange.
  ExchangeCall& exchange_of(const CollectiveRequest& request, const CallPlan& plan) const;

  Result<kernels::HierarchyPlan> plan_among_teams(const CollectiveRequest& request) const;
  Result<kernels::Plan> plan_in_team(const CollectiveRequest& request) const;
  std::optional<kernels::Plan> plan_in_lines(const CollectiveRequest& request) const;
  kernels::HierarchyArguments arguments_among_teams(const CollectiveRequest& request,
                                                    const kernels::HierarchyPlan& plan) const;
  /// Returns the division of a call of one team among `owners` ranks and their CTAs.
  kernels::Split split_of(const CollectiveRequest& request, const kernels::Plan& plan,
                          int owners) const;
  kernels::AllReduceArguments arguments_in_team(const CollectiveRequest& request,
                                                const kernels::Plan& plan) const;
  /// Returns the location from which the NIC reads a buffer; empty if no window holds the whole
  /// buffer.
  kernels::NicSource nic_source(const void* pointer, std::size_t bytes) const;
  /// Counts and records a call of no elements, which runs nothing.
  Status pass_over(const CollectiveRequest& request, const kernels::CollectiveCall& call);
  /// Concludes a call and returns its outcome. If a call failed on the host, waits until the
  /// failure of the communicator is known and returns it.
  Status end_call(Status run);

  CommunicatorParts& parts_;
  FailureWatch& failure_;
};

}  // namespace oriel::comm
