// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator/team_exchange.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/try.hpp"

namespace oriel::comm {
namespace {

constexpr std::uint64_t kGpuChannelBytes = 4 << 20;
constexpr std::uint64_t kHostChannelBytes = 2 << 20;
constexpr std::uint64_t kGpuFarChannelBytes = 8 << 20;
constexpr std::uint64_t kHostFarChannelBytes = 4 << 20;
/// More CTAs than that move no more bytes over NVLink.
constexpr int kMostChannelCtas = 32;

kernels::FoldOperation operation_of(const CollectiveRequest& request, bool on_host) {
  kernels::FoldOperation operation;
  operation.type = request.type;
  operation.op = request.op;
  operation.scalar_bits = request.scalar_bits;
  if (request.scalar_pointer != nullptr && on_host) {
    std::memcpy(&operation.scalar_bits, request.scalar_pointer, size_of(request.type));
  } else {
    operation.scalar_pointer = request.scalar_pointer;
  }
  return operation;
}

}  // namespace

TeamExchange::TeamExchange(kernels::Backend backend, std::vector<std::vector<int>> teams, int rank)
    : backend_(backend), teams_(std::move(teams)) {
  facts_.world_size = 0;
  for (const std::vector<int>& team : teams_) facts_.world_size += static_cast<int>(team.size());
  facts_.common.world_rank = rank;
  facts_.team_index.assign(static_cast<std::size_t>(facts_.world_size), -1);
  for (const std::vector<int>& team : teams_) {
    if (std::find(team.begin(), team.end(), rank) == team.end()) continue;
    for (std::size_t i = 0; i < team.size(); ++i) {
      facts_.team_index[static_cast<std::size_t>(team[i])] = static_cast<std::int16_t>(i);
    }
    facts_.common.ranks = static_cast<std::int32_t>(team.size());
  }
  facts_.common.rank = facts_.index_of(rank);
}

void TeamExchange::lay_out(int max_ctas, std::uint64_t offset) {
  const int ctas = std::min(kMostChannelCtas, max_ctas);
  const std::uint64_t budget = on_host() ? kHostChannelBytes : kGpuChannelBytes;
  facts_.most_ctas = on_host() ? 0 : ctas;
  std::uint64_t far_bytes = 0;
  if (!one_team()) {
    // First, for its size is the same on all ranks.
    facts_.common.far_channels =
        kernels::make_far_channel_layout(backend_, facts_.world_size, offset,
                                         on_host() ? kHostFarChannelBytes : kGpuFarChannelBytes);
    far_bytes = facts_.common.far_channels.total_bytes;
  }
  facts_.common.channels =
      kernels::make_channel_layout(backend_, facts_.common.ranks, ctas, offset + far_bytes, budget);
  // Not just what is used: teams of different sizes register windows of one size.
  scratch_bytes_ = far_bytes + std::max(budget, facts_.common.channels.total_bytes);
}

std::vector<kernels::ChannelLayout> TeamExchange::channels() const {
  std::vector<kernels::ChannelLayout> all{facts_.common.channels};
  if (!one_team()) all.push_back(facts_.common.far_channels);
  return all;
}

void TeamExchange::begin(kernels::ExchangeArguments common) {
  const kernels::ExchangeArguments& known = facts_.common;
  common.rank = known.rank;
  common.ranks = known.ranks;
  common.world_rank = known.world_rank;
  common.channels = known.channels;
  common.far_channels = known.far_channels;
  facts_.common = common;
}

std::vector<kernels::Exchange> TeamExchange::exchanges_of(
    const kernels::RankCollective& collective) const {
  if (!one_team() && collective.collective == kernels::Collective::broadcast) {
    return kernels::broadcast_among_teams(collective, teams_);
  }
  return {kernels::exchange_of(collective)};
}

ExchangeCall TeamExchange::call_of(const CollectiveRequest& request,
                                   const device::WaitControl& wait) const {
  kernels::RankCollective collective;
  collective.collective = request.collective;
  collective.rank = facts_.common.world_rank;
  collective.ranks = facts_.world_size;
  collective.root = request.root;
  collective.input = static_cast<const std::byte*>(request.input);
  collective.output = static_cast<std::byte*>(request.output);
  collective.count = request.count;
  collective.operation = operation_of(request, on_host());
  ExchangeCall call;
  for (const kernels::Exchange& exchange : exchanges_of(collective)) {
    for (kernels::ExchangeArguments& launch : kernels::plan_exchange(exchange, facts_)) {
      launch.signature = exchange.fold_signature;
      call.launches.push_back(launch);
    }
  }
  call.stream = request.stream;
  call.collective = {request.collective, request.type, request.op, request.count, request.root};
  for (kernels::ExchangeArguments& launch : call.launches) {
    launch.wait = wait;
    // Ranks tell each other once in each call, and may need different numbers of launches. Not
    // where a root or a sender waits for nobody: two calls later it would overwrite a word, of
    // which there are two, that a slower rank has yet to read.
    const bool tells = !kernels::has_root(request.collective) && &launch == &call.launches.front();
    if (!tells) launch.signatures = launch.signature_calls = 0;
  }
  return call;
}

Result<PointToPointPlan> TeamExchange::plan(
    const std::vector<PointToPointRequest>& requests) const {
  PointToPointPlan plan;
  std::vector<kernels::PointToPoint> calls;
  calls.reserve(requests.size());
  for (const PointToPointRequest& request : requests) {
    calls.push_back({request.is_send, static_cast<std::byte*>(request.data),
                     request.count * size_of(request.type), request.peer});
    ++(request.is_send ? plan.counts.sends : plan.counts.receives);
  }
  plan.stream = requests.front().stream;
  ORIEL_TRY(plan.exchange, kernels::exchange_of(calls, facts_.common.world_rank));
  return plan;
}

ExchangeCall TeamExchange::call_of(const PointToPointPlan& plan,
                                   const device::WaitControl& wait) const {
  ExchangeCall call;
  call.launches = kernels::plan_exchange(plan.exchange, facts_);
  call.stream = plan.stream;
  for (kernels::ExchangeArguments& launch : call.launches) {
    launch.wait = wait;
    launch.signatures = launch.signature_calls = 0;
  }
  return call;
}

}  // namespace oriel::comm
