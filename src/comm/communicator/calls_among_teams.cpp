// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/communicator/call_runner.hpp"
#include "kernels/plan/layout.hpp"

/// Collectives among LSA teams: their plans and kernel arguments.
namespace oriel::comm {
namespace {

// Returns the signature of a call among teams, like all_reduce_signature().
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

}  // namespace

Result<kernels::HierarchyPlan> CallRunner::plan_among_teams(
    const CollectiveRequest& request) const {
  if (parts_.no_network) return Error(*parts_.no_network);
  kernels::HierarchyFacts facts;
  // A reduce is planned as an all-reduce, of which only the root keeps the result.
  const bool reduce = request.collective == kernels::Collective::reduce;
  facts.collective = reduce ? kernels::Collective::all_reduce : request.collective;
  facts.type = request.type;
  facts.count = request.count;
  facts.deterministic = parts_.settings->deterministic;
  facts.unit_bytes_most = parts_.overrides.chunk_bytes;
  facts.backend = parts_.backend;
  facts.ctas = parts_.overrides.ctas;
  facts.max_ctas = parts_.layout.max_ctas;
  return kernels::plan_hierarchy(facts, parts_.hierarchy, parts_.teams, parts_.singles);
}

device::CommView CallRunner::scratch_view() const {
  const device::WindowView window = parts_.sink->view(parts_.control.handle);
  device::CommView view;
  view.world_rank = rank();
  view.world_size = size();
  view.lsa_rank = parts_.team_facts.index;
  view.lsa_size = static_cast<std::int32_t>(parts_.team_facts.members.size());
  view.wait = parts_.exchanges->wait();
  view.control_base = reinterpret_cast<char*>(parts_.control.flat_base);
  view.control_stride_4g = static_cast<std::uint32_t>(parts_.slot_bytes >> 32);
  view.doorbell_offset = kernels::ScratchLayout::doorbell;
  view.lsa_index_of = window.lsa_index_of;
  if (parts_.network != nullptr) {
    view.network = on_host() ? &parts_.network->view() : parts_.network->kernel_view();
    view.control_network = window.network;
  }
  return view;
}

kernels::NicSource CallRunner::nic_source(const void* pointer, std::size_t bytes) const {
  const auto window = parts_.windows->find(pointer, bytes);
  if (!window) return {};
  return {parts_.sink->view(window->handle).network,
          static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - window->user)};
}

kernels::HierarchyArguments CallRunner::arguments_among_teams(
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
  if (!on_host() && parts_.teams.view().groups == 1) {
    arguments.signatures = parts_.layout.signatures;
    arguments.signature_calls = parts_.layout.epochs + offsetof(kernels::CtaCounters, signature);
  }
  arguments.plan = plan;
  const bool by_team = plan.grouped_by == kernels::GroupedBy::team;
  const kernels::GroupingTables& grouping = by_team ? parts_.teams : parts_.singles;
  if (on_host()) {
    arguments.grouping = grouping.view();
  } else {
    const auto* const tables = static_cast<const std::int32_t*>(parts_.groupings.get());
    arguments.grouping = grouping.view_at(by_team ? tables : tables + parts_.teams.tables().size());
  }
  arguments.layout = parts_.hierarchy;
  arguments.comm = scratch_view();
  if (parts_.network != nullptr && !plan.one_hop) {
    const std::size_t block = request.count * size_of(request.type);
    const std::size_t all = block * static_cast<std::size_t>(size());
    const bool gathers = request.collective == kernels::Collective::all_gather;
    const bool scatters = request.collective == kernels::Collective::reduce_scatter;
    arguments.nic_input = nic_source(request.input, scatters ? all : block);
    if (is_kept) arguments.nic_output = nic_source(request.output, gathers ? all : block);
  }
  arguments.failure = &parts_.notices->on_device()->failure;
  return arguments;
}

}  // namespace oriel::comm
