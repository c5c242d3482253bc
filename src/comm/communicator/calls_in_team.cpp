// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/try.hpp"
#include "comm/communicator/call_runner.hpp"
#include "kernels/plan/call_record.hpp"

/// Plans and kernel arguments of collectives inside one LSA team: all-reduce, reduce,
/// reduce-scatter, and broadcast, all-gather and all-to-all in streams or lines.
namespace oriel::comm {

namespace {

/// Returns the offset of a buffer in this rank's slot; kNoOffset if no window holds the buffer.
std::uint64_t slot_offset_of(const window::WindowManager& windows, const void* pointer,
                             std::size_t bytes) {
  const auto window = windows.find(pointer, bytes);
  if (!window) return kernels::kNoOffset;
  return static_cast<std::uint64_t>(window->slot_offset) +
         static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) - window->user);
}

/// Returns the facts of a streamed call, except its first owner.
kernels::StreamFacts stream_facts(kernels::Backend backend, const kernels::ScratchLayout& layout,
                                  const CollectiveRequest& request, const kernels::Plan& plan,
                                  const kernels::Split& split, bool on_one_gpu) {
  const kernels::CollectiveCall call{request.collective, request.type, request.op, request.count,
                                     request.root};
  kernels::StreamFacts facts;
  facts.chunk_bytes = kernels::chunk_of(plan, backend, split, request.type);
  facts.depth = plan.depth;
  facts.lead = plan.lead;
  facts.reads_inputs = kernels::reads_inputs(backend, layout, call, on_one_gpu);
  facts.whole_rings = plan.whole_rings;
  facts.own_groups = static_cast<std::uint32_t>(plan.own_ctas * plan.sub_ctas);
  if (plan.own_ctas > 0) {
    facts.sent_part = kernels::part_of_sender(plan, request.type, split.share);
  }
  return facts;
}

}  // namespace

Result<kernels::Plan> CallRunner::plan_in_team(const CollectiveRequest& request) const {
  const kernels::Collective collective = request.collective;
  const auto& table = table_of(parts_);
  const kernels::Backend backend = parts_.backend;
  const bool has_blocks = kernels::sends_blocks(collective) || kernels::receives_blocks(collective);
  const std::size_t count =
      has_blocks ? request.count * static_cast<std::size_t>(size()) : request.count;
  if (!kernels::reduces(collective)) {
    return kernels::choose_copy_plan(collective, table, parts_.overrides, backend, parts_.layout,
                                     request.type, count);
  }
  const auto choose = has_blocks ? kernels::choose_scatter_plan : kernels::choose_plan;
  return choose(table, parts_.overrides, backend, parts_.layout, request.type, count);
}

std::optional<kernels::Plan> CallRunner::plan_in_lines(const CollectiveRequest& request) const {
  return kernels::choose_lines_plan(request.collective, table_of(parts_), parts_.overrides,
                                    parts_.backend, parts_.layout,
                                    request.count * size_of(request.type));
}

kernels::Split CallRunner::split_of(const CollectiveRequest& request, const kernels::Plan& plan,
                                    int owners) const {
  const kernels::Backend backend = parts_.backend;
  const kernels::Collective collective = request.collective;
  if (collective == kernels::Collective::broadcast &&
      plan.algorithm == kernels::Algorithm::two_shot) {
    return {kernels::share_of_broadcast(plan, size(), request.count * size_of(request.type)), 0};
  }
  if (collective == kernels::Collective::reduce_scatter || kernels::receives_blocks(collective)) {
    return kernels::split_blocks(plan, backend, request.type, request.count);
  }
  return kernels::split_work(plan, backend, owners, request.type, request.count);
}

kernels::AllReduceArguments CallRunner::arguments_in_team(const CollectiveRequest& request,
                                                          const kernels::Plan& plan) const {
  const auto ranks = static_cast<std::int32_t>(parts_.team_facts.members.size());
  const bool scatters = request.collective == kernels::Collective::reduce_scatter;
  const bool gathers = kernels::receives_blocks(request.collective);
  const int root = kernels::has_root(request.collective) ? request.root : -1;
  const std::size_t all_blocks = request.count * static_cast<std::size_t>(ranks);
  const bool sends_blocks = kernels::sends_blocks(request.collective);
  const std::size_t input_count = sends_blocks ? all_blocks : request.count;
  const std::size_t output_count = gathers ? all_blocks : request.count;
  const kernels::Owners owners = kernels::owners_of(plan, parts_.backend, request.collective, root,
                                                    ranks, request.count * size_of(request.type));
  const kernels::Split split = split_of(request, plan, owners.count);
  kernels::AllReduceArguments arguments;
  arguments.input = static_cast<const std::byte*>(request.input);
  arguments.output = static_cast<std::byte*>(request.output);
  arguments.count = std::max(input_count, output_count);
  arguments.block = scatters ? request.count : 0;
  arguments.scratch = parts_.control.flat_base;
  arguments.stride_4g = static_cast<std::uint32_t>(parts_.slot_bytes >> 32);
  arguments.rank = parts_.team_facts.index;
  arguments.ranks = ranks;
  arguments.root = root;
  arguments.collective = request.collective;
  arguments.operation.average = request.op == ReduceOp::avg;
  arguments.operation.scaled = request.op == ReduceOp::premul_sum;
  arguments.operation.maximum = request.op == ReduceOp::max;
  arguments.layout = parts_.layout;
  arguments.share = split.share;
  arguments.part = split.part;
  arguments.flat_base = parts_.control.flat_base - parts_.control.slot_offset;
  arguments.scalar_bits = request.scalar_bits;
  arguments.scalar_pointer = request.scalar_pointer;
  arguments.type = request.type;
  arguments.op = request.op;
  arguments.wait = parts_.exchanges->wait();
  arguments.failure = &parts_.notices->on_device()->failure;
  if (plan.algorithm == kernels::Algorithm::stream) {
    arguments.input_offset =
        slot_offset_of(*parts_.windows, request.input, input_count * size_of(request.type));
    arguments.output_offset =
        slot_offset_of(*parts_.windows, request.output, output_count * size_of(request.type));
    arguments.stream = stream_facts(parts_.backend, parts_.layout, request, plan, split,
                                    parts_.team_facts.on_one_gpu);
    arguments.stream.first_owner = owners.first;
    if (arguments.input_offset % 16 != 0) arguments.stream.reads_inputs = false;
  }
  arguments.signature =
      kernels::all_reduce_signature(request.type, request.op, request.count, plan.algorithm,
                                    request.collective, std::max(root, 0));
  if (request.scalar_pointer != nullptr && on_host()) {
    std::memcpy(&arguments.scalar_bits, request.scalar_pointer, size_of(request.type));
    arguments.scalar_pointer = nullptr;
  }
  return arguments;
}

}  // namespace oriel::comm
