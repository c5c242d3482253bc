// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/exchange_planner.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/alignment.hpp"
#include "base/try.hpp"
#include "window/registration/registration.hpp"

namespace oriel::comm {
namespace {

/// Channels of GPUs take a part of ORIEL_SCRATCH_SIZE in addition, within these limits.
constexpr std::uint64_t kGpuChannelPart = 3;
constexpr std::uint64_t kLeastGpuChannelBytes = 9 << 19;  // 4.5 MiB
constexpr std::uint64_t kMostGpuChannelBytes = 21 << 20;
constexpr std::uint64_t kHostChannelBytes = 2 << 20;
constexpr std::uint64_t kGpuFarChannelBytes = 8 << 20;
constexpr std::uint64_t kHostFarChannelBytes = 4 << 20;
/// Limits the CTAs of the channels, and so the channels per peer.
constexpr int kMostChannelCtas = 32;

}  // namespace

ExchangePlanner::ExchangePlanner(kernels::Backend backend, std::vector<std::vector<int>> teams,
                                 int rank)
    : backend_(backend), teams_(std::move(teams)) {
  facts_.world_size = 0;
  for (const std::vector<int>& team : teams_) facts_.world_size += static_cast<int>(team.size());
  facts_.memory.world_rank = rank;
  facts_.team_index.assign(static_cast<std::size_t>(facts_.world_size), -1);
  for (const std::vector<int>& team : teams_) {
    if (std::find(team.begin(), team.end(), rank) == team.end()) continue;
    for (std::size_t i = 0; i < team.size(); ++i) {
      facts_.team_index[static_cast<std::size_t>(team[i])] = static_cast<std::int16_t>(i);
    }
    facts_.memory.ranks = static_cast<std::int32_t>(team.size());
  }
  facts_.memory.rank = facts_.index_of(rank);
}

void ExchangePlanner::lay_out(int max_ctas, std::uint64_t offset, std::uint64_t scratch_size) {
  const int ctas = std::min(kMostChannelCtas, max_ctas);
  const std::uint64_t gpu_budget = std::clamp(round_down(scratch_size / kGpuChannelPart, 4096),
                                              kLeastGpuChannelBytes, kMostGpuChannelBytes);
  const std::uint64_t budget = on_host() ? kHostChannelBytes : gpu_budget;
  facts_.most_ctas = on_host() ? 0 : ctas;
  std::uint64_t far_bytes = 0;
  if (!one_team()) {
    // The far channels come first because their size is the same on all ranks.
    facts_.memory.far_channels =
        kernels::make_far_channel_layout(backend_, facts_.world_size, offset,
                                         on_host() ? kHostFarChannelBytes : kGpuFarChannelBytes);
    far_bytes = facts_.memory.far_channels.total_bytes;
  }
  facts_.memory.channels =
      kernels::make_channel_layout(backend_, facts_.memory.ranks, ctas, offset + far_bytes, budget);
  const std::uint64_t channel_bytes = round_up(facts_.memory.channels.total_bytes, 16);
  tokens_ = offset + far_bytes + channel_bytes;
  const bool has_tokens = !on_host() && one_team();
  const std::uint64_t used =
      channel_bytes + (has_tokens ? kernels::token_bytes(facts_.memory.ranks) : 0);
  // Reserves the whole budget because teams of different sizes register windows of one size.
  scratch_bytes_ = far_bytes + std::max(budget, used);
}

std::vector<kernels::ChannelLayout> ExchangePlanner::channels() const {
  std::vector<kernels::ChannelLayout> all{facts_.memory.channels};
  if (!one_team()) all.push_back(facts_.memory.far_channels);
  return all;
}

void ExchangePlanner::begin(kernels::ExchangeMemory memory, const window::WindowManager& windows,
                            bool uses_copy_engines, bool on_one_gpu) {
  windows_ = &windows;
  facts_.on_one_gpu = on_one_gpu;
  uses_copy_engines_ = uses_copy_engines;
  const kernels::ExchangeMemory& known = facts_.memory;
  memory.rank = known.rank;
  memory.ranks = known.ranks;
  memory.world_rank = known.world_rank;
  memory.channels = known.channels;
  memory.far_channels = known.far_channels;
  facts_.memory = memory;
  call_.launches = {};  // the launches refer to the previous memory
  // Reserves a launch. A short exchange may need it in any call, and repeated calls allocate
  // nothing.
  call_.launches.add(facts_.memory);
  call_.launches.clear();
  call_.facts = &facts_;
}

void ExchangePlanner::reach_output(kernels::RankCollective& call) const {
  const std::uint64_t block = call.count * size_of(call.type);
  const std::uint64_t all = block * static_cast<std::uint64_t>(call.ranks);
  const std::uint64_t bytes = kernels::receives_blocks(call.collective) ? all : block;
  std::byte* const place = place_of(call.output, bytes);
  // An input inside the output moves too, so that a call in place is recognised. So does a long one
  // around it, if one window holds the input. On one GPU peers copy from long inputs.
  const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(call.input) -
                                             reinterpret_cast<std::uintptr_t>(call.output));
  if (at < bytes) {
    call.input = place + at;
  } else if (block >= facts_.memory.channels.least_direct_bytes) {
    const std::uint64_t sent = kernels::sends_blocks(call.collective) ? all : block;
    const bool is_reached = facts_.on_one_gpu || 0 - at < sent;
    if (is_reached) call.input = place_of(const_cast<std::byte*>(call.input), sent);
  }
  call.output = place;
}

std::byte* ExchangePlanner::place_of(std::byte* data, std::uint64_t bytes) const {
  const kernels::ExchangeMemory& memory = facts_.memory;
  if (bytes < memory.channels.least_direct_bytes) return data;
  const auto window = windows_->find(data, bytes);
  if (!window) return data;
  const std::uint64_t slot = std::uint64_t{memory.stride_4g} << 32;
  return window->flat_base + slot * static_cast<std::uint64_t>(memory.rank) + (data - window->user);
}

kernels::RankCollective ExchangePlanner::collective_of(const CollectiveRequest& request) const {
  kernels::RankCollective collective;
  collective.collective = request.collective;
  collective.rank = facts_.memory.world_rank;
  collective.ranks = facts_.world_size;
  collective.root = request.root;
  collective.input = static_cast<const std::byte*>(request.input);
  collective.output = static_cast<std::byte*>(request.output);
  collective.count = request.count;
  collective.type = request.type;
  collective.op = request.op;
  return collective;
}

void ExchangePlanner::clear_call() {
  call_.launches.clear();
  call_.copies.clear();
  call_.short_exchange = nullptr;
  call_.fold.output = nullptr;
}

void ExchangePlanner::set_fold(kernels::RankCollective& reduce) {
  call_.fold.type = reduce.type;
  call_.fold.op = reduce.op;
  call_.fold.count = reduce.count;
  call_.fold.inputs[reduce.rank] = reduce.input;
  call_.fold.inputs[1 - reduce.rank] = peer_input_.data();
  call_.fold.output = reduce.output;
  reduce.output = peer_input_.data();
}

ExchangeCall& ExchangePlanner::call_of(const CollectiveRequest& request) {
  kernels::RankCollective collective = collective_of(request);
  clear_call();
  if (request.collective == kernels::Collective::reduce) {
    if (collective.rank == collective.root) set_fold(collective);
  } else {
    reach_output(collective);
  }
  if (!one_team() && request.collective == kernels::Collective::broadcast) {
    for (const auto& part : kernels::broadcast_among_teams(collective, teams_)) {
      kernels::plan_exchange(part, facts_, call_.launches);
    }
  } else {
    kernels::set_exchange(exchange_, collective);
    plan_launches(exchange_);
  }
  finish_call(request);
  return call_;
}

std::uint64_t ExchangePlanner::copy_engine_offset(const CollectiveRequest& request) const {
  if (!uses_copy_engines_) return kernels::kNoOffset;
  const kernels::RankCollective collective = collective_of(request);
  if (!kernels::suits_copy_engines(collective)) return kernels::kNoOffset;
  const kernels::SharedBuffer shared = kernels::shared_buffer(collective);
  const auto window = windows_->find(shared.data, shared.bytes);
  if (!window || (window->flags & window::kWindowSymmetric) == 0) return kernels::kNoOffset;
  return window->slot_offset + static_cast<std::uint64_t>(shared.data - window->user);
}

ExchangeCall& ExchangePlanner::copies_of(const CollectiveRequest& request, std::uint64_t offset) {
  const kernels::ExchangeMemory& memory = facts_.memory;
  const std::uint64_t slot = std::uint64_t{memory.stride_4g} << 32;
  std::byte* const own = memory.scratch + slot * static_cast<std::uint64_t>(memory.rank);
  kernels::plan_copy_engines(collective_of(request),
                             {memory.flat_base, memory.stride_4g, offset, own + tokens_}, copies_);
  clear_call();
  kernels::plan_exchange(copies_.entry, facts_, call_.launches);
  call_.launches_before_copies = call_.launches.size();
  call_.copies.swap(copies_.copies);
  call_.copies_own_block = copies_.copies_own_block;
  const bool has_exit = !copies_.exit.sends.empty() || !copies_.exit.receives.empty();
  if (has_exit) kernels::plan_exchange(copies_.exit, facts_, call_.launches);
  finish_call(request);
  return call_;
}

void ExchangePlanner::finish_call(const CollectiveRequest& request) {
  call_.stream = request.stream;
  call_.collective = {request.collective, request.type, request.op, request.count, request.root};
  for (kernels::ExchangeArguments& launch : call_.launches) {
    // Ranks exchange signatures once per call, because they may need different numbers of launches.
    // Calls with a root exchange none, because their senders wait for nobody. Two calls later a
    // sender would reuse a word, of which there are two, before a slower rank has read it.
    const bool reports =
        !kernels::has_root(request.collective) && &launch == call_.launches.begin();
    if (!reports) launch.signatures = launch.signature_calls = 0;
  }
}

Result<PointToPointPlan*> ExchangePlanner::plan(std::span<const PointToPointRequest> requests) {
  messages_.clear();
  for (const PointToPointRequest& request : requests) {
    const std::uint64_t bytes = request.count * size_of(request.type);
    auto* const data = static_cast<std::byte*>(request.data);
    const bool is_reached = !request.is_send || facts_.on_one_gpu;
    messages_.push_back(
        {request.is_send, is_reached ? place_of(data, bytes) : data, bytes, request.peer});
  }
  plan_.requests = requests;
  plan_.stream = requests.front().stream;
  ORIEL_CHECK(kernels::set_exchange(plan_.exchange, messages_, facts_.memory.world_rank));
  return &plan_;
}

void ExchangePlanner::plan_launches(kernels::Exchange& exchange) {
  if (kernels::is_short(exchange, facts_)) {
    call_.short_exchange = &exchange;
  } else {
    kernels::plan_exchange(exchange, facts_, call_.launches);
  }
}

ExchangeCall& ExchangePlanner::call_of(PointToPointPlan& plan) {
  clear_call();
  plan_launches(plan.exchange);
  call_.stream = plan.stream;
  call_.record = nullptr;
  for (kernels::ExchangeArguments& launch : call_.launches) {
    launch.signatures = launch.signature_calls = 0;
  }
  return call_;
}

}  // namespace oriel::comm
