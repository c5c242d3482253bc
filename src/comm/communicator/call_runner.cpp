// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/call_runner.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/try.hpp"
#include "comm/communicator/last_calls.hpp"
#include "comm/request/call_checks.hpp"
#include "kernels/plan/kernel_set.hpp"

namespace oriel::comm {
namespace {

enum class Way : std::uint8_t { in_team, by_exchange, among_teams };

/// Facts that all ranks share; they decide how a collective runs.
struct WayFacts {
  kernels::Collective collective;
  std::size_t block;  ///< bytes that one rank contributes or receives
  int ranks;
  bool one_team;
  bool on_host;
  bool forces_streams;  ///< ORIEL_ALGORITHM is stream
  bool may_fold;        ///< no algorithm is forced, and no input is scaled
};

/// Returns whether a broadcast that does not go in lines runs as a stream: scatter and all-gather,
/// in which all ranks send. Otherwise it is an exchange. Inside one team its root sends to each
/// rank. An exchange is faster for short messages, between two ranks, and on CPUs, where receivers
/// may read the root's memory.
bool streams_broadcast(const WayFacts& facts) {
  constexpr std::size_t kLeastBytes = 384 << 10;
  if (!facts.one_team || facts.ranks < 2) return false;
  return facts.forces_streams || (!facts.on_host && facts.ranks > 2 && facts.block >= kLeastBytes);
}

/// Returns whether an all-gather or all-to-all runs as a stream: one handshake per call, instead of
/// an address request per message. The shortest blocks go in lines. Longer blocks outside windows
/// pass faster through the slots of an exchange (docs/notes/streams.md). Not all ranks know which
/// blocks lie in windows.
bool streams_blocks(const WayFacts& facts) {
  constexpr std::size_t kKi = 1 << 10;
  if (!facts.one_team || facts.ranks < 2) return false;
  if (facts.on_host || facts.forces_streams) return facts.forces_streams;
  if (facts.collective == kernels::Collective::all_gather) {
    return facts.block >= 256 * kKi && (facts.ranks == 2 || facts.block <= 4096 * kKi);
  }
  const std::size_t all = facts.block * static_cast<std::size_t>(facts.ranks);
  return all >= 2048 * kKi && all < 4096 * kKi;
}

/// Returns whether a short all-gather, all-to-all or reduce-scatter of CPU ranks is eager
/// (eager.hpp).
bool may_be_eager(const WayFacts& facts) {
  using kernels::Collective;
  if (!facts.on_host || !facts.one_team || facts.ranks < 2) return false;
  return facts.collective == Collective::all_gather || facts.collective == Collective::all_to_all ||
         facts.collective == Collective::reduce_scatter;
}

/// Returns whether a call goes in lines, if they fit: an all-gather or all-to-all in one trip
/// (one_shot_blocks.hpp), a broadcast in two (two_shot_broadcast.hpp). Beyond these sizes streams
/// are faster between windows, and about as fast elsewhere; longer broadcasts do not fit the slots
/// (docs/notes/streams.md). Shorter broadcasts are faster as exchanges, whose root waits for
/// nobody.
bool prefers_lines(const WayFacts& facts, AlgorithmChoice forced) {
  using kernels::Collective;
  constexpr std::size_t kKi = 1 << 10;
  if (!facts.one_team || facts.ranks < 2) return false;
  const std::size_t all = facts.block * static_cast<std::size_t>(facts.ranks);
  const bool is_free = forced != AlgorithmChoice::stream && !facts.on_host;
  switch (facts.collective) {
    case Collective::all_gather:
    case Collective::all_to_all:
      return forced == AlgorithmChoice::one_shot || (is_free && all <= 1536 * kKi);
    case Collective::broadcast:
      return forced == AlgorithmChoice::two_shot ||
             (is_free && facts.ranks > 2 && facts.block >= 96 * kKi && facts.block <= 1024 * kKi);
    default:
      return false;
  }
}

/// Returns whether a short reduce of two CPU ranks is an exchange, whose root folds both inputs. In
/// lines the other rank would have to wait for the root (docs/notes/cpu.md).
bool folds_at_root(const WayFacts& facts) {
  return facts.on_host && facts.one_team && facts.ranks == 2 && facts.may_fold &&
         facts.block <= kernels::kMostFoldBytes;
}

/// Returns how a collective is carried out.
Way way_of(const WayFacts& facts) {
  using kernels::Collective;
  // Between these sizes a reduce-scatter of more than two CPU ranks runs in stages. Stages copy
  // more, but wait less often for all ranks.
  constexpr std::size_t kShortOnHost = 1 << 10;
  constexpr std::size_t kLongOnHost = 64 << 10;
  const bool is_middling =
      facts.on_host && facts.ranks > 2 && facts.block > kShortOnHost && facts.block < kLongOnHost;
  switch (facts.collective) {
    case Collective::reduce:
      if (folds_at_root(facts)) return Way::by_exchange;
      [[fallthrough]];
    case Collective::all_reduce:
      return facts.one_team ? Way::in_team : Way::among_teams;
    case Collective::broadcast:
      return streams_broadcast(facts) ? Way::in_team : Way::by_exchange;
    case Collective::reduce_scatter:
      return facts.one_team && !is_middling ? Way::in_team : Way::among_teams;
    case Collective::all_gather:
      if (streams_blocks(facts)) return Way::in_team;
      return facts.one_team ? Way::by_exchange : Way::among_teams;
    case Collective::all_to_all:
      return streams_blocks(facts) ? Way::in_team : Way::by_exchange;
    default:
      return Way::by_exchange;
  }
}

/// Plans a call of no elements. CPU ranks count their calls. GPU ranks cannot, because a graph may
/// replay a call many times. So on several GPUs of one team an empty call is a kernel of one CTA,
/// which exchanges signatures.
void plan_empty_call(bool is_kernel, CallPlan& plan) {
  if (!is_kernel) return;
  plan.only_signatures = true;
  plan.team.algorithm = kernels::Algorithm::one_shot;
  plan.team.ctas = 0;
  plan.team.threads = kernels::kMinThreads;
}

}  // namespace

Status CallRunner::plan_for(const CollectiveRequest& request, CallPlan& plan) const {
  ORIEL_CHECK(failure_.check_usable());
  ORIEL_CHECK(parts_.executor->check_stream(request.stream));
  ORIEL_CHECK(check_root(request, size()));
  const bool one_team = parts_.teams.view().groups == 1;
  if (request.count == 0) {
    plan_empty_call(!on_host() && size() > 1 && one_team, plan);
    return {};
  }
  ORIEL_CHECK(check_collective(request, rank(), size()));
  plan.copy_engine_offset = parts_.exchanges->copy_engine_offset(request);
  if (plan.copy_engine_offset != kernels::kNoOffset) {
    plan.by_exchange = true;
    return {};
  }
  const AlgorithmChoice forced = parts_.settings->algorithm;
  const WayFacts facts{request.collective,
                       request.count * size_of(request.type),
                       size(),
                       one_team,
                       on_host(),
                       forced == AlgorithmChoice::stream,
                       forced == AlgorithmChoice::automatic && request.op != ReduceOp::premul_sum};
  std::optional<kernels::Plan> lines;
  if (may_be_eager(facts)) {
    lines =
        kernels::choose_eager_plan(table_of(parts_), parts_.overrides, parts_.layout, facts.block);
  }
  if (!lines && prefers_lines(facts, forced)) lines = plan_in_lines(request);
  if (lines) {
    plan.team = *lines;
    plan.team.ctas = std::max(plan.team.ctas, parts_.least_ctas);
    return {};
  }
  const Way way = way_of(facts);
  plan.by_exchange = way == Way::by_exchange;
  if (plan.by_exchange) return parts_.no_network ? Status(*parts_.no_network) : Status();
  if (way == Way::among_teams) {
    ORIEL_TRY(plan.among_teams, plan_among_teams(request));
    return {};
  }
  ORIEL_TRY(plan.team, plan_in_team(request));
  plan.team.ctas = std::max(plan.team.ctas, parts_.least_ctas);  // at most the layout's limit
  return {};
}

ExchangeCall& CallRunner::exchange_of(const CollectiveRequest& request,
                                      const CallPlan& plan) const {
  if (plan.copy_engine_offset == kernels::kNoOffset) {
    return parts_.exchanges->call_of(request);
  }
  return parts_.exchanges->copies_of(request, plan.copy_engine_offset);
}

Status CallRunner::collective(const CollectiveRequest& request) {
  CallPlan plan;
  ORIEL_CHECK(plan_for(request, plan));
  return run(request, plan);
}

Status CallRunner::run(const CollectiveRequest& request, const CallPlan& plan) {
  const kernels::CollectiveCall call{request.collective, request.type, request.op, request.count,
                                     request.root};
  if (request.count == 0 && !plan.only_signatures) return pass_over(request, call);
  if (on_host()) parts_.flight->enter(call, request.stream);
  Status run;
  if (plan.by_exchange) {
    ExchangeCall& exchange = exchange_of(request, plan);
    exchange.record = call_record(parts_, parts_.team_facts.index);
    run = parts_.executor->run_exchange(exchange);
  } else if (plan.among_teams) {
    run = parts_.executor->run_hierarchy(arguments_among_teams(request, *plan.among_teams),
                                         request.stream);
  } else {
    run = parts_.executor->run(plan.team, arguments_in_team(request, plan.team), request.stream);
  }
  if (run.ok() && !on_host()) {
    parts_.flight->enter(call, request.stream, parts_.executor->last_mark());
  }
  return end_call(std::move(run));
}

Status CallRunner::pass_over(const CollectiveRequest& request,
                             const kernels::CollectiveCall& call) {
  // The call is counted. Otherwise the next call of a rank that alone has no elements would get the
  // number of this call.
  if (kernels::CallRecord* const record = call_record(parts_, parts_.team_facts.index)) {
    parts_.executor->pass_over(*record, call);
  }
  parts_.flight->enter(call, request.stream);
  return end_call({});
}

Status CallRunner::end_call(Status run) {
  if (!on_host()) {
    if (run.ok()) return run;
    if (run.error().scope() == Scope::communicator) {
      // A part of the exchange is enqueued, and the peers do not know the state of the channels.
      failure_.give_up(run.error());
    } else if (run.error().code() != ErrorCode::invalid_usage) {
      parts_.flight->write(run.error().to_string(), false);  // the driver has refused the call
    }
    return run;
  }
  parts_.flight->leave(run.ok());
  if (run.ok()) return run;
  failure_.await_failure();
  if (!parts_.has_failed) return run;
  Error failure = *failure_.error();
  parts_.flight->write(failure.to_string(), true);  // or waits for the thread that writes it
  return failure;
}

Status CallRunner::check(const PointToPointRequest& request) const {
  ORIEL_CHECK(failure_.check_usable());
  ORIEL_CHECK(parts_.executor->check_stream(request.stream));
  ORIEL_CHECK(check_point_to_point(request, size()));
  const auto& team_of = parts_.topology.teams.team;
  const auto peer = static_cast<std::size_t>(request.peer);
  const bool is_near = team_of[peer] == team_of[static_cast<std::size_t>(rank())];
  return is_near || !parts_.no_network ? Status() : Status(*parts_.no_network);
}

Result<PointToPointPlan*> CallRunner::plan_for(std::span<const PointToPointRequest> requests) {
  ORIEL_CHECK(failure_.check_usable());
  return parts_.exchanges->plan(requests);
}

Status CallRunner::run(PointToPointPlan& plan) {
  if (on_host() || plan.is_empty()) parts_.flight->enter(plan.requests);
  if (plan.is_empty()) return end_call({});
  Status run = parts_.executor->run_exchange(parts_.exchanges->call_of(plan));
  if (run.ok() && !on_host()) {
    parts_.flight->enter(plan.requests, parts_.executor->last_mark());
  }
  return end_call(std::move(run));
}

}  // namespace oriel::comm
