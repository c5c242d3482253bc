// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "window/registration/registration.hpp"
#include "window/registration/team_processes.hpp"

namespace oriel::window {

/// Carries the allocations of a batch between the processes of a team: fabric handles inline in a
/// message to all ranks, file descriptors over the sockets. What has arrived lives as long as this.
class HandleTransfer {
 public:
  /// `wanted`: by process, what it has to offer; the same on all ranks.
  HandleTransfer(TeamProcesses& processes, const boot::Group& team, Memory& memory,
                 std::vector<std::vector<SegmentInfo>> wanted);

  /// Exports what this process has to offer; for the rank that speaks for it.
  Result<OfferMessage> make_offer();
  /// The number of handles in the offer of the rank with this slot.
  std::size_t due_from(int slot) const;
  /// Takes in the offers of all ranks, none of which has failed. The same on all ranks.
  Status take_offers(std::vector<OfferMessage> offers);
  /// Receives the descriptors and imports everything; for the rank that speaks for the process.
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
