// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "oriel/device/wait.hpp"
#include "oriel/error.hpp"

#include "comm/device/device.hpp"
#include "comm/request/call_request.hpp"
#include "kernels/plan/algorithm.hpp"
#include "kernels/plan/channel_layout.hpp"
#include "kernels/plan/copy_engines.hpp"
#include "kernels/plan/exchange.hpp"
#include "window/registration/window_manager.hpp"

namespace oriel::comm {

/// The sends and receives of one communicator in one group, ready to run.
struct PointToPointPlan {
  kernels::Exchange exchange;
  void* stream = nullptr;                         ///< of the first call
  std::span<const PointToPointRequest> requests;  ///< as the user made them, for the recorder

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
  /// `wait`; its `signatures` and `signature_calls` are for collectives of one team only. `windows`
  /// must outlive this. `uses_copy_engines`: calls that suit these go by them.
  void begin(kernels::ExchangeMemory memory, const window::WindowManager& windows,
             bool uses_copy_engines);
  bool uses_copy_engines() const { return uses_copy_engines_; }

  /// Returns the launches of a collective, without its record. What it returned before is void.
  ExchangeCall& call_of(const CollectiveRequest& request, const device::WaitControl& wait);

  /// Returns the offset in every slot of the buffer that all ranks share in a collective which copy
  /// engines carry out, or kNoOffset: kernels carry it out then.
  std::uint64_t copy_engine_offset(const CollectiveRequest& request) const;
  /// Returns such a collective, as call_of() does.
  ExchangeCall& copies_of(const CollectiveRequest& request, std::uint64_t offset,
                          const device::WaitControl& wait);

  /// Pairs sends to this rank with receives from it. invalid_usage if they do not match. The plan
  /// refers to `requests`, and holds until the next one.
  Result<const PointToPointPlan*> plan(std::span<const PointToPointRequest> requests);
  ExchangeCall& call_of(const PointToPointPlan& plan, const device::WaitControl& wait);

 private:
  bool on_host() const { return backend_ == kernels::Backend::host; }
  bool one_team() const { return teams_.size() == 1; }
  /// Returns the collective with this rank's buffers as the user named them.
  kernels::RankCollective collective_of(const CollectiveRequest& request) const;
  /// Sets what all launches of call_ have in common.
  void finish_call(const CollectiveRequest& request, const device::WaitControl& wait);
  /// Returns where peers of the team reach a buffer that is received into: its address in this
  /// rank's slot of the flat space if a window holds it, else `data`. Short ones are not looked up.
  std::byte* place_of(std::byte* data, std::uint64_t bytes) const;
  /// Sets the output of a call to its place_of().
  void reach_output(kernels::RankCollective& call) const;

  kernels::Backend backend_;
  std::vector<std::vector<int>> teams_;
  std::uint64_t scratch_bytes_ = 0;
  std::uint64_t tokens_ = 0;  // offset in the scratch memory
  bool uses_copy_engines_ = false;
  const window::WindowManager* windows_ = nullptr;
  kernels::ExchangeFacts facts_;
  // Of the last call, and of the last sends and receives; kept, so that the next one allocates
  // nothing.
  kernels::Exchange exchange_;
  kernels::CopyEnginePlan copies_;
  std::vector<kernels::PointToPoint> messages_;
  PointToPointPlan plan_;
  ExchangeCall call_;
};

}  // namespace oriel::comm
