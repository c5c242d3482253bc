// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oriel/device/wait.hpp"
#include "oriel/error.hpp"

#include "comm/communicator/call_notes.hpp"
#include "comm/communicator/call_request.hpp"
#include "comm/device/device.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/channel_layout.hpp"
#include "kernels/plan/exchange.hpp"

namespace oriel::comm {

/// Returns whether ranks of one LSA team carry a collective out as an exchange.
constexpr bool goes_by_exchange(kernels::Collective collective) {
  return collective != kernels::Collective::all_reduce &&
         collective != kernels::Collective::all_gather &&
         collective != kernels::Collective::reduce_scatter;
}

/// The sends and receives of one communicator in one group, ready to run.
struct PointToPointPlan {
  kernels::Exchange exchange;
  void* stream = nullptr;  ///< of the first call
  PointToPointCounts counts;

  /// Returns whether all messages are empty, so that nothing runs.
  bool is_empty() const {
    return exchange.sends.empty() && exchange.receives.empty() && exchange.copies.empty();
  }
};

/// Makes exchanges of the calls of a communicator that is one LSA team. Owns the facts that they
/// share. Immutable once begin() has returned.
class TeamExchange {
 public:
  /// Divides the channels' part of the scratch memory, which begins at `offset`.
  void lay_out(kernels::Backend backend, int ranks, int max_ctas, std::uint64_t offset);
  const kernels::ChannelLayout& channels() const { return facts_.common.channels; }
  /// Returns the size of that part, which does not depend on the size of the team.
  std::uint64_t scratch_bytes() const { return scratch_bytes_; }

  /// Sets what is known once the scratch memory is mapped. `common` has neither channels nor
  /// `wait`; its `signatures` and `signature_calls` are for collectives only.
  void begin(kernels::ExchangeArguments common);

  /// Returns the launches of a collective, without its record.
  ExchangeCall call_of(const CollectiveRequest& request, const device::WaitControl& wait) const;

  /// Pairs sends to this rank with receives from it. invalid_usage if they do not match.
  Result<PointToPointPlan> plan(const std::vector<PointToPointRequest>& requests) const;
  ExchangeCall call_of(const PointToPointPlan& plan, const device::WaitControl& wait) const;

 private:
  bool on_host() const { return backend_ == kernels::Backend::host; }

  kernels::Backend backend_ = kernels::Backend::host;
  std::uint64_t scratch_bytes_ = 0;
  kernels::ExchangeFacts facts_;
};

}  // namespace oriel::comm
