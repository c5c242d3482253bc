// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "window/registration/registration.hpp"
#include "window/registration/team_processes.hpp"

namespace oriel::window {

/// Transfers the allocations of a batch between the processes of a team. Fabric handles travel
/// inline in a message to all ranks, file descriptors over the unix sockets. Imported allocations
/// live at least as long as this object.
class HandleTransfer {
 public:
  /// `wanted` lists by process the allocations that it must export; equal on all ranks.
  HandleTransfer(TeamProcesses& processes, const boot::Group& team, Memory& memory,
                 std::vector<std::vector<SegmentInfo>> wanted);

  /// Exports the allocations of this process; called by the rank that speaks for it.
  Result<OfferMessage> make_offer();
  /// Returns the number of handles in the offer of the rank with this slot.
  std::size_t due_from(int slot) const;
  /// Checks and stores the offers of all ranks, none of which has failed. The result is equal on
  /// all ranks.
  Status take_offers(std::vector<OfferMessage> offers);
  /// Receives the descriptors and imports all allocations; called by the rank that speaks for the
  /// process.
  Task<Status> import_all(EventLoop& loop, Deadline deadline);

 private:
  using Descriptors = std::vector<std::vector<OwnedFd>>;  // by place in the exchange

  Task<Result<Descriptors>> receive_descriptors(EventLoop& loop, Deadline deadline);
  Status import_arrived(Descriptors arrived);
  Status import_one(ShareableHandle handle, const SegmentInfo& info);

  TeamProcesses& processes_;
  const boot::Group& team_;
  Memory& memory_;
  std::vector<std::vector<SegmentInfo>> wanted_;  // by process
  std::vector<OfferMessage> offers_;              // by process
  std::vector<OwnedFd> outgoing_;
  std::vector<AllocationRef> imported_;
};

}  // namespace oriel::window
