// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "oriel/device/wait.hpp"
#include "oriel/error.hpp"

#include "comm/communicator/call_request.hpp"
#include "comm/device/device.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/channel_layout.hpp"
#include "kernels/plan/exchange.hpp"

namespace oriel::comm {

/// Returns whether a collective is carried out as an exchange, by ranks of one LSA team or of more.
constexpr bool goes_by_exchange(kernels::Collective collective, bool one_team) {
  return collective != kernels::Collective::all_reduce &&
         collective != kernels::Collective::all_gather &&
         collective != kernels::Collective::reduce_scatter &&
         (one_team || collective != kernels::Collective::reduce);
}

/// The sends and receives of one communicator in one group, ready to run.
struct PointToPointPlan {
  kernels::Exchange exchange;
  void* stream = nullptr;                     ///< of the first call
  std::vector<PointToPointRequest> requests;  ///< as the user made them, for the recorder

  /// Returns whether all messages are empty, so that nothing runs.
  bool is_empty() const {
    return exchange.sends.empty() && exchange.receives.empty() && exchange.copies.empty();
  }
};

/// Makes exchanges of the calls of a communicator. Owns the facts that they share. One thread at a
/// time.
class ExchangePlanner {
 public:
  /// `teams` are the LSA teams, in which `rank` is.
  ExchangePlanner(kernels::Backend backend, std::vector<std::vector<int>> teams, int rank);

  /// Divides the channels' part of the scratch memory, which begins at `offset`.
  void lay_out(int max_ctas, std::uint64_t offset);
  /// Returns the channels that there are, for whoever prepares their memory.
  std::vector<kernels::ChannelLayout> channels() const;
  /// Returns the size of that part, which does not depend on the size of the team.
  std::uint64_t scratch_bytes() const { return scratch_bytes_; }

  /// Sets what is known once the scratch memory is mapped. `memory` has neither ranks, channels nor
  /// `wait`; its `signatures` and `signature_calls` are for collectives of one team only.
  void begin(kernels::ExchangeMemory memory);

  /// Returns the launches of a collective, without its record. What it returned before is void.
  ExchangeCall& call_of(const CollectiveRequest& request, const device::WaitControl& wait);

  /// Pairs sends to this rank with receives from it. invalid_usage if they do not match.
  Result<PointToPointPlan> plan(const std::vector<PointToPointRequest>& requests) const;
  ExchangeCall& call_of(const PointToPointPlan& plan, const device::WaitControl& wait);

 private:
  bool on_host() const { return backend_ == kernels::Backend::host; }
  bool one_team() const { return teams_.size() == 1; }
  void plan(const kernels::Exchange& exchange);

  kernels::Backend backend_;
  std::vector<std::vector<int>> teams_;
  std::uint64_t scratch_bytes_ = 0;
  kernels::ExchangeFacts facts_;
  // Of the last call; kept, so that the next one allocates nothing.
  kernels::Exchange exchange_;
  ExchangeCall call_;
};

}  // namespace oriel::comm
