// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "window/registration/batch_mappings.hpp"
#include "window/registration/handle_transfer.hpp"
#include "window/registration/window_manager.hpp"

namespace oriel::window {

/// One registration in progress on one rank. Owns everything that it makes until commit; its
/// destructor undoes an uncommitted run. Lives until the outcome round has ended: ranks of one
/// process share holds and imported allocations, which none may release earlier.
class RegistrationRun {
 public:
  RegistrationRun(WindowManager& manager, EventLoop& loop, boot::Operation operation,
                  std::vector<WindowRequest> requests, Deadline deadline);
  ~RegistrationRun();
  RegistrationRun(const RegistrationRun&) = delete;
  RegistrationRun& operator=(const RegistrationRun&) = delete;

  /// Runs the protocol. Its rounds are:
  ///   world  agree:      error of this rank, number of windows, sizes, flags;
  ///   team   all-gather: details (allocations and offsets);
  ///   team   all-gather: places, until all proposals are equal and held;
  ///   team   all-gather: handles, if new mappings span several processes;
  ///          unix sockets between the processes: file descriptors;
  ///   team   agree:      all imported, if a process has several ranks;
  ///   world  agree:      outcome, then once for each participant.
  Task<Result<std::vector<RegisteredWindow>>> run();

 private:
  const WindowManagerOptions& options() const { return manager_.options_; }
  boot::Group& team() { return *options().team; }
  TeamProcesses& processes() { return manager_.processes_; }

  Task<Status> agree_on_requests();
  /// The steps of the team return an error only if a connection of the groups has failed, which
  /// ends the registration at once. A failure of this rank goes to failure_ and reaches the team in
  /// the next round. Once all team members know of a failure, they set stopped_ and skip their
  /// remaining steps. The outcome round then reports the failure to the world.
  Task<Status> exchange_details();
  Task<Status> agree_on_places();
  Task<Status> exchange_handles();
  Task<Status> import_handles();
  Task<Status> agree_on_outcome();

  Status prepare_places();
  PlaceMessage next_proposal();
  Result<bool> take_places(const std::vector<Bytes>& messages);
  Task<OfferMessage> next_offer();
  Status take_offers(const std::vector<Bytes>& messages);
  Deadline descriptors_due() const;
  Status make_handles();
  std::vector<RegisteredWindow> commit();
  /// Stores the first failure and ignores later ones.
  void note(Status status);
  void stop(Error error);

  WindowManager& manager_;
  EventLoop& loop_;
  const boot::Operation operation_;
  const Deadline deadline_;
  std::vector<WindowRequest> requests_;
  std::vector<std::vector<Segment>> segments_;  // this rank's

  Status failure_;        // first failure of this rank, or one on which the team has stopped
  bool stopped_ = false;  // all team members know that a member has failed
  bool committed_ = false;

  std::vector<FdSocketName> names_;         // by process
  std::optional<BatchMappings> mappings_;   // once the team has a plan
  std::optional<HandleTransfer> transfer_;  // if the processes must exchange handles
  std::vector<RegisteredWindow> windows_;
  std::vector<Participant*> prepared_;
};

}  // namespace oriel::window
