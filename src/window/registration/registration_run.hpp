// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <vector>

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
  using Gathered = Result<std::vector<Bytes>>;

  const WindowManagerOptions& options() const { return manager_.options_; }
  boot::Group& team() { return *options().team; }
  bool several_processes() const { return manager_.processes_.size() > 1; }
  bool several_ranks_somewhere() const;

  Task<Status> agree_on_requests();
  /// The steps of the team end with an error only if a connection of the groups has failed, which
  /// ends the registration at once. A failure of this rank goes to failure_ and is told to the team
  /// in the next round; once all of the team know of one they have stopped_ set and leave out the
  /// rest of their steps, and the outcome round tells the world.
  Task<Status> exchange_details();
  Task<Status> agree_on_places();
  Task<Status> exchange_handles();
  Deadline descriptors_due() const;
  Task<Result<std::vector<std::vector<OwnedFd>>>> receive_descriptors();
  Task<Status> exchange_descriptors();
  Task<Status> await_imports();
  Task<Status> agree_on_outcome();

  Result<Plan> plan_of(const std::vector<Bytes>& messages);
  Status prepare_places();
  Status propose(const PlaceSearch& search, SlotSpace::Proposal& out);
  PlaceMessage place_message(const PlaceSearch& search, const SlotSpace::Proposal& proposal) const;
  Result<bool> take_places(const std::vector<Bytes>& messages, PlaceSearch& search);
  Status keep_places();
  bool something_to_send() const;
  /// Whether some of the team can be reached by fabric handles only.
  bool spans_domains() const;
  Status make_offer(OfferMessage& offer);
  Task<Status> dial();
  Status take_offers(const std::vector<Bytes>& messages);
  /// `arrived` by place in the exchange.
  Status import_all(std::vector<std::vector<OwnedFd>> arrived);
  Status import_one(ShareableHandle handle, const SegmentInfo& info);
  Status make_ready();
  Status map_new();
  Status make_handles();
  /// Whatever a commit needs memory for.
  void prepare_commit();
  std::vector<RegisteredWindow> commit() noexcept;
  /// Keeps the first failure.
  void note(Status status);
  void stop(Error error);

  WindowManager& manager_;
  EventLoop& loop_;
  const boot::Operation operation_;
  const Deadline deadline_;
  const SlotSpace::Token token_;

  std::vector<WindowRequest> requests_;
  std::vector<std::vector<Segment>> segments_;  // this rank's
  Plan plan_;
  std::vector<bool> is_new_;         // by the plan's mapping
  Layout layout_;                    // of the new ones
  std::size_t place_ = 0;            // where the layout begins in the slots
  std::vector<FdSocketName> names_;  // by process

  Status failure_;           // of this rank
  bool stopped_ = false;     // all of the team know that one of them has failed
  bool team_began_ = false;  // the team's steps have begun
  bool exchanged_ = false;   // the team has exchanged descriptors
  bool committed_ = false;

  std::vector<OfferMessage> offers_;  // by process
  std::vector<OwnedFd> outgoing_;
  std::vector<AllocationRef> imported_;
  std::vector<SlotPlace> new_places_;  // from the last of the plan's mappings to the first
  std::vector<std::shared_ptr<TeamMapping>> mappings_;  // by the plan's mapping
  std::vector<RegisteredWindow> windows_;
  std::map<const void*, WindowManager::Record> records_;  // of windows_
  std::vector<Participant*> prepared_;
  std::shared_ptr<FlatSpace> space_;
};

}  // namespace oriel::window
