// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
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

/// Sends and receives of one communicator in one group, ready to run.
struct PointToPointPlan {
  kernels::Exchange exchange;
  void* stream = nullptr;                         ///< stream of the first request
  std::span<const PointToPointRequest> requests;  ///< the user's requests, for the flight recorder

  /// Returns whether there are no messages and copies, so that nothing runs.
  bool is_empty() const {
    return exchange.sends.empty() && exchange.receives.empty() && exchange.copies.empty();
  }
};

/// Turns the calls of a communicator into exchanges. Owns the facts that all of them share. One
/// thread at a time.
class ExchangePlanner {
 public:
  /// `teams` are all LSA teams; one of them contains `rank`.
  ExchangePlanner(kernels::Backend backend, std::vector<std::vector<int>> teams, int rank);

  /// Lays out the channels, whose part of the scratch memory begins at `offset`. `scratch_size`
  /// (ORIEL_SCRATCH_SIZE) limits the channels of GPUs.
  void lay_out(int max_ctas, std::uint64_t offset, std::uint64_t scratch_size);
  /// Returns the layouts of all channels, for the code that initializes their memory.
  std::vector<kernels::ChannelLayout> channels() const;
  /// Returns the size of the channels' part. It is at least the budget, so that teams of different
  /// sizes get equal sizes.
  std::uint64_t scratch_bytes() const { return scratch_bytes_; }

  /// Sets the facts that are known once the scratch memory is mapped. `memory` need not contain
  /// ranks or channels. Its `signatures` and `signature_calls` are set for collectives of
  /// one team only. `windows` must outlive this object. `uses_copy_engines`: copy engines carry out
  /// the calls that suit them. `on_one_gpu`: all ranks are one team and share a GPU.
  void begin(kernels::ExchangeMemory memory, const window::WindowManager& windows,
             bool uses_copy_engines, bool on_one_gpu);
  bool uses_copy_engines() const { return uses_copy_engines_; }
  /// Returns how waits of the communicator's calls end.
  const device::WaitControl& wait() const { return facts_.memory.wait; }

  /// Returns the launches of a collective, or its short exchange; the caller sets its record.
  /// Invalidates the previous result.
  ExchangeCall& call_of(const CollectiveRequest& request);

  /// Returns the offset of the shared buffer in every slot, if copy engines can carry out the
  /// collective. Returns kNoOffset if kernels carry it out.
  std::uint64_t copy_engine_offset(const CollectiveRequest& request) const;
  /// Returns the launches and copies of a collective that copy engines carry out; otherwise like
  /// call_of().
  ExchangeCall& copies_of(const CollectiveRequest& request, std::uint64_t offset);

  /// Plans sends and receives. Sends to this rank are paired with receives from this rank: returns
  /// invalid_usage if they do not match. The plan refers to `requests`, runs once, and is valid
  /// until the next call.
  Result<PointToPointPlan*> plan(std::span<const PointToPointRequest> requests);
  ExchangeCall& call_of(PointToPointPlan& plan);

 private:
  bool on_host() const { return backend_ == kernels::Backend::host; }
  bool one_team() const { return teams_.size() == 1; }
  /// Appends the launches of an exchange to call_. A short exchange of CPU ranks gets none yet.
  void plan_launches(kernels::Exchange& exchange);
  /// Returns the collective with this rank's buffers as the user passed them.
  kernels::RankCollective collective_of(const CollectiveRequest& request) const;
  /// Sets the fields that all launches of call_ share, and selects the launch that exchanges
  /// signatures.
  void finish_call(const CollectiveRequest& request);
  /// Returns the address at which peers of the team reach a buffer. It lies in this rank's
  /// slot of the flat space if a window holds the buffer, else it is `data`. Buffers below
  /// least_direct_bytes are not looked up.
  std::byte* place_of(std::byte* data, std::uint64_t bytes) const;
  /// Sets the output of a call to its place_of(). Does so with the input too if it overlaps the
  /// output, or if all ranks share a GPU.
  void reach_output(kernels::RankCollective& call) const;
  /// Removes from call_ what the last exchange has left.
  void clear_call();
  /// Plans the root's fold of a reduce. The other rank's input goes to peer_input_ first.
  void set_fold(kernels::RankCollective& reduce);

  kernels::Backend backend_;
  std::vector<std::vector<int>> teams_;
  std::uint64_t scratch_bytes_ = 0;
  std::uint64_t tokens_ = 0;  // offset of the tokens in the scratch memory
  bool uses_copy_engines_ = false;
  const window::WindowManager* windows_ = nullptr;
  kernels::ExchangeFacts facts_;
  // State of the last collective, and of the last sends and receives. Kept so that the next call
  // reuses their memory: the same call made again allocates nothing (no_memory_test.cpp).
  kernels::Exchange exchange_;
  kernels::CopyEnginePlan copies_;
  std::vector<kernels::PointToPoint> messages_;
  PointToPointPlan plan_;
  ExchangeCall call_;
  alignas(64) std::array<std::byte, kernels::kMostFoldBytes> peer_input_{};
};

}  // namespace oriel::comm
