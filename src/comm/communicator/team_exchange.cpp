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

void TeamExchange::lay_out(kernels::Backend backend, int ranks, int max_ctas,
                           std::uint64_t offset) {
  backend_ = backend;
  const std::uint64_t budget = on_host() ? kHostChannelBytes : kGpuChannelBytes;
  facts_.common.channels = kernels::make_channel_layout(
      backend, ranks, std::min(kMostChannelCtas, max_ctas), offset, budget);
  // Not just what is used: teams of different sizes register windows of one size.
  scratch_bytes_ = std::max(budget, channels().total_bytes);
}

void TeamExchange::begin(kernels::ExchangeArguments common) {
  common.channels = channels();
  facts_.common = common;
}

ExchangeCall TeamExchange::call_of(const CollectiveRequest& request,
                                   const device::WaitControl& wait) const {
  kernels::TeamCollective team;
  team.collective = request.collective;
  team.rank = facts_.common.rank;
  team.ranks = facts_.common.ranks;
  team.root = request.root;
  team.input = static_cast<const std::byte*>(request.input);
  team.output = static_cast<std::byte*>(request.output);
  team.count = request.count;
  team.operation = operation_of(request, on_host());
  const kernels::Exchange exchange = kernels::exchange_of(team);
  ExchangeCall call;
  call.launches = kernels::plan_exchange(exchange, facts_);
  call.stream = request.stream;
  call.collective = {request.collective, request.type, request.op, request.count, request.root};
  for (kernels::ExchangeArguments& launch : call.launches) {
    launch.wait = wait;
    launch.signature = exchange.fold_signature;
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
  ORIEL_TRY(plan.exchange, kernels::exchange_of(calls, facts_.common.rank));
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
