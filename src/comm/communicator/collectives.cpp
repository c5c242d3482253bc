// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "oriel/device/queue.hpp"

#include "base/log.hpp"
#include "base/try.hpp"
#include "comm/communicator/call_checks.hpp"
#include "comm/communicator/call_text.hpp"
#include "comm/communicator/rank_communicator.hpp"
#include "comm/network/queue_failure.hpp"
#include "kernels/plan/kernel_set.hpp"

/// The front door of the collectives: checks a call, chooses from facts that all ranks share how to
/// carry it out, and hands it to the device.
namespace oriel::comm {
namespace {

// As all_reduce_signature, for calls among teams.
std::uint32_t signature_of(const CollectiveRequest& request, const kernels::HierarchyPlan& plan) {
  std::uint64_t hash = request.count;
  const auto mix = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  mix(static_cast<std::uint64_t>(request.collective) << 16 |
      static_cast<std::uint64_t>(request.type) << 8 | static_cast<std::uint64_t>(request.op));
  mix(plan.shape.unit);
  mix(plan.rounds);
  if (kernels::has_root(request.collective)) mix(static_cast<std::uint64_t>(request.root));
  return static_cast<std::uint32_t>(hash >> (64 - kernels::kSignatureBits));
}

enum class Way : std::uint8_t { in_team, by_exchange, among_teams };

/// Facts that all ranks share.
struct WayFacts {
  kernels::Collective collective;
  std::size_t block;  ///< what one rank contributes, or gets, in bytes
  int ranks;
  bool one_team;
  bool on_host;
  bool forces_streams;  ///< by ORIEL_ALGORITHM
};

/// Returns whether a broadcast takes two trips, in which all ranks send. In one trip the root sends
/// to each, which is faster for short messages and between two ranks, and on CPUs, where all read.
bool streams_broadcast(const WayFacts& facts) {
  constexpr std::size_t kLeastBytes = 384 << 10;
  if (!facts.one_team || facts.ranks < 2) return false;
  return facts.forces_streams || (!facts.on_host && facts.ranks > 2 && facts.block >= kLeastBytes);
}

/// Returns whether an all-gather or all-to-all goes in streams, where a rank greets the others once
/// and does not ask for the place of each message. Shorter blocks go in packets. Longer ones
/// outside windows pass more quickly through the slots of an exchange (docs/notes/streams.md), and
/// which of them lie in windows is not known to all ranks.
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

/// Returns how a collective is carried out.
Way way_of(const WayFacts& facts) {
  using kernels::Collective;
  // CPU ranks copy longer blocks outside windows faster in stages, and where a rank's buffer lies
  // is not known to the others. A reduce-scatter of many ranks waits for all of them more often.
  constexpr std::size_t kLongestOnHost = 64 << 10;
  constexpr std::size_t kLongestScatter = 1 << 10;
  const bool scatters_among_many =
      facts.collective == Collective::reduce_scatter && facts.ranks > 2;
  const std::size_t longest = scatters_among_many ? kLongestScatter : kLongestOnHost;
  const bool goes_straight = facts.one_team && (!facts.on_host || facts.block <= longest);
  switch (facts.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
      return facts.one_team ? Way::in_team : Way::among_teams;
    case Collective::broadcast:
      return streams_broadcast(facts) ? Way::in_team : Way::by_exchange;
    case Collective::reduce_scatter:
      return goes_straight ? Way::in_team : Way::among_teams;
    case Collective::all_gather:
      if (streams_blocks(facts)) return Way::in_team;
      return goes_straight ? Way::by_exchange : Way::among_teams;
    case Collective::all_to_all:
      return streams_blocks(facts) ? Way::in_team : Way::by_exchange;
    default:
      return Way::by_exchange;
  }
}

/// Plans a call of no elements. CPU ranks count their calls; GPU ranks cannot, for a graph may run
/// one of theirs many times. So on GPUs such a call is a kernel too, of the one CTA that tells and
/// hears which call it is.
void plan_empty_call(bool is_kernel, CallPlan& plan) {
  if (!is_kernel) return;
  plan.only_tells = true;
  plan.team.algorithm = kernels::Algorithm::one_shot;
  plan.team.ctas = 0;
  plan.team.threads = kernels::kMinThreads;
}

}  // namespace

Result<kernels::HierarchyPlan> Communicator::plan_among_teams(
    const CollectiveRequest& request) const {
  if (no_network_) return Error(*no_network_);
  kernels::HierarchyFacts facts;
  // A reduce has the plan of an all-reduce, of which the root keeps the result.
  const bool reduce = request.collective == kernels::Collective::reduce;
  facts.collective = reduce ? kernels::Collective::all_reduce : request.collective;
  facts.type = request.type;
  facts.count = request.count;
  facts.deterministic = settings_->deterministic;
  facts.unit_bytes_most = overrides_.chunk_bytes;
  facts.backend = device_->backend();
  facts.ctas = overrides_.ctas;
  facts.max_ctas = layout_.max_ctas;
  return kernels::plan_hierarchy(facts, hierarchy_, teams_, singles_);
}

Result<kernels::Plan> Communicator::plan_in_team(const CollectiveRequest& request) const {
  const kernels::Collective collective = request.collective;
  const auto& table = own_table_ ? *own_table_ : kernels::ChoiceTable::built_in();
  const kernels::Backend backend = device_->backend();
  const bool has_blocks = kernels::sends_blocks(collective) || kernels::receives_blocks(collective);
  const std::size_t count =
      has_blocks ? request.count * static_cast<std::size_t>(size()) : request.count;
  if (!kernels::reduces(collective)) {
    return kernels::choose_copy_plan(collective, table, overrides_, backend, layout_, request.type,
                                     count);
  }
  const auto choose = has_blocks ? kernels::choose_scatter_plan : kernels::choose_plan;
  return choose(table, overrides_, backend, layout_, request.type, count);
}

Status Communicator::plan_for(const CollectiveRequest& request, CallPlan& plan) const {
  ORIEL_CHECK(check_usable());
  ORIEL_CHECK(executor_->check_stream(request.stream));
  ORIEL_CHECK(check_root(request, size()));
  const bool one_team = teams_.view().groups == 1;
  if (request.count == 0) {
    plan_empty_call(!on_host() && size() > 1 && one_team, plan);
    return {};
  }
  ORIEL_CHECK(check_collective(request, rank(), size()));
  const Way way = way_of({request.collective, request.count * size_of(request.type), size(),
                          one_team, on_host(), settings_->algorithm == AlgorithmChoice::stream});
  plan.by_exchange = way == Way::by_exchange;
  if (plan.by_exchange) return no_network_ ? Status(*no_network_) : Status();
  if (way == Way::among_teams) {
    ORIEL_TRY(plan.among_teams, plan_among_teams(request));
    return {};
  }
  ORIEL_TRY(plan.team, plan_in_team(request));
  plan.team.ctas = std::max(plan.team.ctas, options_.min_ctas);  // not above the layout's limit
  return {};
}

device::CommView Communicator::scratch_view() const {
  const device::WindowView window = window_view(control_.handle);
  device::CommView view;
  view.world_rank = rank();
  view.world_size = size();
  view.lsa_rank = team_facts_.index;
  view.lsa_size = static_cast<std::int32_t>(team_facts_.members.size());
  view.wait = wait_control(own_doorbell());
  view.control_base = reinterpret_cast<char*>(control_.flat_base);
  view.control_stride_4g = static_cast<std::uint32_t>(slot_bytes_ >> 32);
  view.doorbell_offset = kernels::ScratchLayout::doorbell;
  view.lsa_index_of = window.lsa_index_of;
  if (network_ != nullptr) {
    view.network = on_host() ? &network_->view() : network_->kernel_view();
    view.control_network = window.network;
  }
  return view;
}

kernels::NicSource Communicator::nic_source(const void* pointer, std::size_t bytes) const {
  const auto window = windows_->find(pointer, bytes);
  if (!window) return {};
  return {window_view(window->handle).network,
          static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - window->user)};
}

kernels::HierarchyArguments Communicator::make_hierarchy_arguments(
    const CollectiveRequest& request, const kernels::HierarchyPlan& plan) const {
  kernels::HierarchyArguments arguments;
  arguments.collective = request.collective;
  arguments.type = request.type;
  arguments.op = request.op;
  arguments.input = static_cast<const std::byte*>(request.input);
  const bool is_kept = request.collective != kernels::Collective::reduce || request.root == rank();
  arguments.output = is_kept ? static_cast<std::byte*>(request.output) : nullptr;
  arguments.count = request.count;
  arguments.scalar_bits = request.scalar_bits;
  if (request.scalar_pointer != nullptr && on_host()) {
    std::memcpy(&arguments.scalar_bits, request.scalar_pointer, size_of(request.type));
  } else {
    arguments.scalar_pointer = request.scalar_pointer;
  }
  arguments.signature = signature_of(request, plan);
  if (!on_host() && teams_.view().groups == 1) {
    arguments.signatures = layout_.signatures;
    arguments.signature_calls = layout_.epochs + offsetof(kernels::CtaCounters, signature);
  }
  arguments.plan = plan;
  const bool by_team = plan.grouped_by == kernels::GroupedBy::team;
  const kernels::GroupingTables& grouping = by_team ? teams_ : singles_;
  if (on_host()) {
    arguments.grouping = grouping.view();
  } else {
    const auto* const tables = static_cast<const std::int32_t*>(groupings_.get());
    arguments.grouping = grouping.view_at(by_team ? tables : tables + teams_.tables().size());
  }
  arguments.layout = hierarchy_;
  arguments.comm = scratch_view();
  if (network_ != nullptr && !plan.one_hop) {
    const std::size_t block = request.count * size_of(request.type);
    const std::size_t all = block * static_cast<std::size_t>(size());
    const bool gathers = request.collective == kernels::Collective::all_gather;
    const bool scatters = request.collective == kernels::Collective::reduce_scatter;
    arguments.nic_input = nic_source(request.input, scatters ? all : block);
    if (is_kept) arguments.nic_output = nic_source(request.output, gathers ? all : block);
  }
  arguments.failure = &notices_->on_device()->failure;
  return arguments;
}

Status Communicator::prepare(const CollectiveRequest& request, const CallPlan& plan) {
  if (request.count == 0 && !plan.only_tells) return {};
  if (plan.by_exchange) {
    return executor_->prepare_exchange(exchanges_->call_of(request, wait_control(own_doorbell())));
  }
  if (plan.among_teams) {
    return executor_->prepare_hierarchy(make_hierarchy_arguments(request, *plan.among_teams));
  }
  return executor_->prepare(plan.team, make_arguments(request, plan.team));
}

Status Communicator::collective(const CollectiveRequest& request) {
  CallPlan plan;
  ORIEL_CHECK(plan_for(request, plan));
  return run(request, plan);
}

Status Communicator::run(const CollectiveRequest& request, const CallPlan& plan) {
  const kernels::CollectiveCall call{request.collective, request.type, request.op, request.count,
                                     request.root};
  if (request.count == 0 && !plan.only_tells) {
    // It counts, so that a rank which alone has nothing is not taken to be in the next call.
    if (kernels::CallRecord* const record = call_record(team_facts_.index)) {
      executor_->pass_over(*record, call);
    }
    flight_->enter(call, request.stream);
    return end_call({});
  }
  if (on_host()) flight_->enter(call, request.stream);
  Status run;
  if (plan.by_exchange) {
    ExchangeCall& exchange = exchanges_->call_of(request, wait_control(own_doorbell()));
    exchange.record = call_record(team_facts_.index);
    run = executor_->run_exchange(exchange);
  } else if (plan.among_teams) {
    run = executor_->run_hierarchy(make_hierarchy_arguments(request, *plan.among_teams),
                                   request.stream);
  } else {
    run = executor_->run(plan.team, make_arguments(request, plan.team), request.stream);
  }
  if (run.ok() && !on_host()) flight_->enter(call, request.stream);
  return end_call(std::move(run));
}

Status Communicator::end_call(Status run) {
  if (!on_host()) {
    // A part of an exchange is under way, and the channels are in no state that the peers know.
    if (!run.ok() && run.error().scope() == Scope::communicator) give_up(run.error());
    return run;
  }
  flight_->leave(run.ok());
  if (run.ok()) return run;
  await_failure();
  if (!poisoned_) return run;
  Error failure = *async_error();
  flight_->write(failure.to_string(), true);  // or waits for whoever writes it
  return failure;
}

void Communicator::begin_exchanges() {
  kernels::ExchangeMemory memory;
  memory.scratch = control_.flat_base;
  memory.flat_base = control_.flat_base - control_.slot_offset;
  memory.stride_4g = static_cast<std::uint32_t>(slot_bytes_ >> 32);
  memory.doorbell = layout_.doorbell;
  memory.failure = &notices_->on_device()->failure;
  if (network_ != nullptr) {
    memory.network = on_host() ? &network_->view() : network_->kernel_view();
    memory.network_window = window_view(control_.handle).network;
  }
  if (!on_host() && teams_.view().groups == 1) {
    memory.signatures = layout_.signatures;
    memory.signature_calls = layout_.epochs + offsetof(kernels::CtaCounters, signature);
  }
  exchanges_->begin(memory, *windows_);
}

Status Communicator::check(const PointToPointRequest& request) const {
  ORIEL_CHECK(check_usable());
  ORIEL_CHECK(executor_->check_stream(request.stream));
  ORIEL_CHECK(check_point_to_point(request, size()));
  const auto& team_of = topology_.teams.team;
  const auto peer = static_cast<std::size_t>(request.peer);
  const bool is_near = team_of[peer] == team_of[static_cast<std::size_t>(rank())];
  return is_near || !no_network_ ? Status() : Status(*no_network_);
}

Result<const PointToPointPlan*> Communicator::plan_for(
    std::span<const PointToPointRequest> requests) {
  for (const PointToPointRequest& request : requests) ORIEL_CHECK(check(request));
  return exchanges_->plan(requests);
}

Status Communicator::prepare(const PointToPointPlan& plan) {
  return executor_->prepare_exchange(exchanges_->call_of(plan, wait_control(own_doorbell())));
}

Status Communicator::run(const PointToPointPlan& plan) {
  if (on_host() || plan.is_empty()) flight_->enter(plan.requests);
  if (plan.is_empty()) return end_call({});
  Status run = executor_->run_exchange(exchanges_->call_of(plan, wait_control(own_doorbell())));
  if (run.ok() && !on_host()) flight_->enter(plan.requests);
  return end_call(std::move(run));
}

void Communicator::await_failure() {
  constexpr auto kPause = std::chrono::milliseconds(1);
  look_for_failure();
  while (!poisoned_ && network_ != nullptr && network_->is_in_doubt()) {
    std::this_thread::sleep_for(kPause);
    look_for_failure();
  }
}

}  // namespace oriel::comm
