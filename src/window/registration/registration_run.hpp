// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "window/registration/batch_mappings.hpp"
#include "window/registration/handle_transfer.hpp"
#include "window/registration/window_manager.hpp"

namespace oriel::window {

/// One registration in progress on one rank. Owns whatever it has made until commit; destroying it
/// before takes all of that back. Lives until the outcome round has ended, because ranks of one
/// process share holds and imported allocations, which none may let go before all are through.
class RegistrationRun {
 public:
  RegistrationRun(WindowManager& manager, EventLoop& loop, boot::Operation operation,
                  std::vector<WindowRequest> requests, Deadline deadline);
  ~RegistrationRun();
  RegistrationRun(const RegistrationRun&) = delete;
  RegistrationRun& operator=(const RegistrationRun&) = delete;

  /// The protocol. Rounds:
  ///   world  agree      verdict, number of windows, sizes, flags
  ///   team   all-gather details: allocations and offsets
  ///   team   all-gather places, until all proposals are one
  ///   team   all-gather handles, if something new is to be mapped between processes
  ///          descriptors between the processes
  ///   team   agree      all imported, if a process has several ranks
  ///   world  agree      outcome; with participants once more for each
  Task<Result<std::vector<RegisteredWindow>>> run();

 private:
  const WindowManagerOptions& options() const { return manager_.options_; }
  boot::Group& team() { return *options().team; }
  TeamProcesses& processes() { return manager_.processes_; }

  Task<Status> agree_on_requests();
  /// The steps of the team end with an error only if a connection of the groups has failed, which
  /// ends the registration at once. A failure of this rank goes to failure_ and is told to the team
  /// in the next round; once all of the team know of one they have stopped_ set and leave out the
  /// rest of their steps, and the outcome round tells the world.
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
  /// Keeps the first failure.
  void note(Status status);
  void stop(Error error);

  WindowManager& manager_;
  EventLoop& loop_;
  const boot::Operation operation_;
  const Deadline deadline_;
  std::vector<WindowRequest> requests_;
  std::vector<std::vector<Segment>> segments_;  // this rank's

  Status failure_;        // of this rank
  bool stopped_ = false;  // all of the team know that one of them has failed
  bool committed_ = false;

  std::vector<FdSocketName> names_;         // by process
  std::optional<BatchMappings> mappings_;   // once the team has a plan
  std::optional<HandleTransfer> transfer_;  // if the team has something to send
  std::vector<RegisteredWindow> windows_;
  std::vector<Participant*> prepared_;
};

}  // namespace oriel::window
