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

/// How a collective is carried out: by an algorithm of all-reduces inside a single LSA team, as an
/// exchange, by copy engines between the parts of an exchange, or among teams.
struct CallPlan {
  kernels::Plan team;
  std::optional<kernels::HierarchyPlan> among_teams{};
  bool by_exchange = false;
  /// By copy engines: ExchangePlanner::copy_engine_offset(), else kNoOffset.
  std::uint64_t copy_engine_offset = kernels::kNoOffset;
  /// A call of no elements on a GPU, of which ranks only tell each other: `team` has no CTAs.
  bool only_tells = false;
};

/// The collectives, sends and receives of one communicator: checks a call, chooses from facts that
/// all ranks share how to carry it out, and hands it to the device. Local; on CPUs run() returns
/// when the call has ended. One thread at a time.
class CallRunner {
 public:
  /// Both must outlive this.
  CallRunner(CommunicatorParts& parts, FailureWatch& failure) : parts_(parts), failure_(failure) {}

  Status collective(const CollectiveRequest& request);
  /// Its two steps: the first checks the call and chooses how to carry it out, and has no effect.
  /// It sets `plan`, a new one: a Result of one is copied, which a small call notices.
  Status plan_for(const CollectiveRequest& request, CallPlan& plan) const;
  Status run(const CollectiveRequest& request, const CallPlan& plan);
  /// Makes ready what the second step would first have to wait for (Executor::prepare).
  Status prepare(const CollectiveRequest& request, const CallPlan& plan);

  /// Checks one send or receive, as far as it can be told without the others of its group.
  Status check(const PointToPointRequest& request) const;
  /// The three steps of a group's sends and receives, which run as one exchange. The plan refers to
  /// `requests`, and holds until the next one.
  Result<const PointToPointPlan*> plan_for(std::span<const PointToPointRequest> requests);
  Status prepare(const PointToPointPlan& plan);
  Status run(const PointToPointPlan& plan);

  /// Returns the scratch memory as the algorithms among teams see it.
  device::CommView scratch_view() const;

 private:
  bool on_host() const { return comm::on_host(parts_); }
  int rank() const { return parts_.session->rank(); }
  int size() const { return parts_.session->size(); }
  device::WaitControl own_waits() const;
  /// Returns the launches and copies of a call that is an exchange.
  ExchangeCall& exchange_of(const CollectiveRequest& request, const CallPlan& plan) const;

  Result<kernels::HierarchyPlan> plan_among_teams(const CollectiveRequest& request) const;
  Result<kernels::Plan> plan_in_team(const CollectiveRequest& request) const;
  std::optional<kernels::Plan> plan_in_lines(std::uint64_t block) const;
  kernels::HierarchyArguments arguments_among_teams(const CollectiveRequest& request,
                                                    const kernels::HierarchyPlan& plan) const;
  kernels::AllReduceArguments arguments_in_team(const CollectiveRequest& request,
                                                const kernels::Plan& plan) const;
  /// Returns where the NIC reads a buffer; nowhere if no window holds all of it.
  kernels::NicSource nic_source(const void* pointer, std::size_t bytes) const;
  /// Notes a call of no elements.
  Status pass_over(const CollectiveRequest& request, const kernels::CollectiveCall& call);
  /// Returns the outcome of a call that has run, on the host once its failure is known.
  Status end_call(Status run);

  CommunicatorParts& parts_;
  FailureWatch& failure_;
};

}  // namespace oriel::comm
