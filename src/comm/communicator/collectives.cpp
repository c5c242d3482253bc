// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "oriel/device/queue.hpp"

#include "base/log.hpp"
#include "base/try.hpp"
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
  return static_cast<std::uint32_t>(hash >> (64 - kernels::kSignatureBits));
}

struct Range {
  std::uintptr_t begin;
  std::uintptr_t end;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};

}  // namespace

/// Either apart, or in place as each collective has it.
Status Communicator::check_overlap(const CollectiveRequest& request) const {
  const std::size_t bytes = request.count * size_of(request.type);
  const auto ranks = static_cast<std::size_t>(size());
  const bool gathers = request.collective == kernels::Collective::all_gather;
  const bool scatters = request.collective == kernels::Collective::reduce_scatter;
  const auto input = reinterpret_cast<std::uintptr_t>(request.input);
  const auto output = reinterpret_cast<std::uintptr_t>(request.output);
  const Range sent{input, input + (scatters ? ranks * bytes : bytes)};
  const Range received{output, output + (gathers ? ranks * bytes : bytes)};
  if (!sent.meets(received)) return {};
  const std::uintptr_t block = static_cast<std::uintptr_t>(rank()) * bytes;
  const bool in_place = gathers    ? input == output + block
                        : scatters ? output == input + block
                                   : input == output;
  if (in_place) return {};
  const char* const rule = gathers    ? "sendbuff is not recvbuff + rank * sendcount elements"
                           : scatters ? "recvbuff is not sendbuff + rank * recvcount elements"
                                      : "are not equal";
  return Error(ErrorCode::invalid_argument,
               fmt::format("sendbuff and recvbuff overlap, but {}", rule));
}

Status Communicator::check_arguments(const CollectiveRequest& request) const {
  const std::size_t element = size_of(request.type);
  const auto bad = [&](std::string message) {
    return Error(ErrorCode::invalid_argument, std::move(message))
        .with_context(fmt::format("checking the arguments of an {}", name_of(request.collective)));
  };
  // Elements have 1, 2, 4 or 8 bytes: masks, for a division takes as long as a cache miss.
  std::size_t most = (SIZE_MAX / 8) >> __builtin_ctzll(element);
  if (request.collective != kernels::Collective::all_reduce) {
    most /= static_cast<std::size_t>(size());
  }
  if (request.count > most) {
    return bad(fmt::format("count {} is larger than memory", request.count));
  }
  if (request.input == nullptr) return bad("sendbuff is null");
  if (request.output == nullptr) return bad("recvbuff is null");
  const auto input = reinterpret_cast<std::uintptr_t>(request.input);
  const auto output = reinterpret_cast<std::uintptr_t>(request.output);
  if (((input | output) & (element - 1)) != 0) {
    return bad(fmt::format("{} is not aligned to {}, whose elements have {} bytes",
                           input % element != 0 ? "sendbuff" : "recvbuff", name_of(request.type),
                           element));
  }
  if (Status apart = check_overlap(request); !apart.ok()) {
    return bad(apart.error().message());
  }
  return {};
}

Result<kernels::HierarchyPlan> Communicator::plan_among_teams(
    const CollectiveRequest& request) const {
  const std::size_t teams = topology_.teams.members.size();
  if (teams > 1 && network_ == nullptr) {
    if (no_network_) return Error(*no_network_);
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} of {} ranks can reach each other's memory ({}), and there is no "
                             "network between CPUs and GPUs",
                             team_facts_.members.size(), size(), topo::text_of(topology_.teams)))
        .with_hint("use GPUs only, or ranks on the CPU only (ORIEL_BACKEND=host)");
  }
  kernels::HierarchyFacts facts;
  facts.collective = request.collective;
  facts.type = request.type;
  facts.count = request.count;
  facts.deterministic = settings_->deterministic;
  facts.unit_bytes_most = overrides_.chunk_bytes;
  facts.backend = device_->backend();
  facts.ctas = overrides_.ctas;
  facts.max_ctas = layout_.max_ctas;
  return kernels::plan_hierarchy(facts, hierarchy_, teams_, singles_);
}

CallPlan Communicator::plan_of_empty_call() const {
  CallPlan plan;
  // CPU ranks count their calls; GPU ranks cannot, for a graph may run one of theirs many times. So
  // a call of no elements is a kernel too, of the one CTA that tells and hears which call it is.
  plan.only_tells = !on_host() && size() > 1 && teams_.view().groups == 1;
  if (plan.only_tells) {
    plan.team.algorithm = kernels::Algorithm::one_shot;
    plan.team.ctas = 0;
    plan.team.threads = kernels::kMinThreads;
  }
  return plan;
}

Result<CallPlan> Communicator::plan_for(const CollectiveRequest& request) const {
  ORIEL_CHECK(check_usable());
  ORIEL_CHECK(executor_->check_stream(request.stream));
  if (request.count == 0) return plan_of_empty_call();
  CallPlan plan;
  ORIEL_CHECK(check_arguments(request));
  if (request.collective != kernels::Collective::all_reduce ||
      static_cast<int>(team_facts_.members.size()) != size()) {
    ORIEL_TRY(plan.among_teams, plan_among_teams(request));
    return plan;
  }
  const auto& table = own_table_ ? *own_table_ : kernels::ChoiceTable::built_in();
  ORIEL_TRY(plan.team, kernels::choose_plan(table, overrides_, device_->backend(), layout_,
                                            request.type, request.count));
  plan.team.ctas = std::max(plan.team.ctas, options_.min_ctas);  // not above the layout's limit
  return plan;
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
  arguments.output = static_cast<std::byte*>(request.output);
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
    arguments.nic_output = nic_source(request.output, gathers ? all : block);
  }
  arguments.failure = &notices_->on_device()->failure;
  return arguments;
}

Status Communicator::prepare(const CollectiveRequest& request, const CallPlan& plan) {
  if (request.count == 0 && !plan.only_tells) return {};
  if (plan.among_teams) {
    return executor_->prepare_hierarchy(make_hierarchy_arguments(request, *plan.among_teams));
  }
  return executor_->prepare(plan.team, make_arguments(request, plan.team));
}

Status Communicator::collective(const CollectiveRequest& request) {
  ORIEL_TRY(const auto plan, plan_for(request));
  return run(request, plan);
}

Status Communicator::run(const CollectiveRequest& request, const CallPlan& plan) {
  if (request.count == 0 && !plan.only_tells) {
    // It counts, so that a rank which alone has nothing is not taken to be in the next call.
    if (kernels::CallRecord* const record = call_record(team_facts_.index)) {
      executor_->pass_over(*record, {request.collective, request.type, request.op, 0});
    }
    return {};
  }
  in_call_.store(on_host(), std::memory_order_relaxed);
  Status run = plan.among_teams
                   ? executor_->run_hierarchy(make_hierarchy_arguments(request, *plan.among_teams),
                                              request.stream)
                   : executor_->run(plan.team, make_arguments(request, plan.team), request.stream);
  in_call_.store(false, std::memory_order_relaxed);
  if (run.ok() && !on_host()) note_enqueued(request);
  if (run.ok() || !on_host()) return run;
  await_failure();
  return poisoned_ ? Status(*async_error()) : run;
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
