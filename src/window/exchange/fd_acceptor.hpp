// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "boot/auth/auth.hpp"
#include "boot/link/poller.hpp"

namespace oriel::window {

/// Accepts connections at a unix socket and has their makers prove the secret. Strangers are
/// dropped; when too many stay silent, the oldest give way to the next in the queue. A state
/// machine over the poller, which outlives this or is destroyed first.
class FdAcceptor {
 public:
  /// Takes a connection whose maker has proved the secret, or closes it.
  using Admit = std::function<void(OwnedFd socket, const boot::AuthClaim& claim)>;
  using Fail = std::function<void(Error)>;

  /// `lookup` finds the secret; `expected` connections are honest.
  FdAcceptor(boot::Poller& poller, const Clock& clock, OwnedFd listener,
             boot::AuthResponder::KeyLookup lookup, std::size_t expected, Admit admit, Fail fail);

  /// Watches the listener, and accepts what waits.
  Status start();
  /// To be called after each wait of the poller.
  void go_on();
  /// When go_on() has to be called, whatever the poller says.
  Deadline wake() const;
  /// Whether the queue has been empty since start(), and nobody accepted is left unproven.
  bool is_through() const { return queue_was_empty_ && candidates_.empty(); }

 private:
  /// A connection until its maker has proved the secret.
  struct Candidate {
    OwnedFd socket;
    boot::AuthResponder responder{boot::KeyPurpose::fd_exchange};
    boot::Poller::Token token = 0;
    Deadline turn = Deadline::never();  // it may be dropped after this
  };
  using CandidateIt = std::list<Candidate>::iterator;

  void accept_waiting();
  void challenge(OwnedFd socket);
  bool make_room();
  void pause(bool paused);
  void read_response(CandidateIt it);
  void drop(CandidateIt it);

  boot::Poller& poller_;
  const Clock& clock_;
  OwnedFd listener_;
  boot::AuthResponder::KeyLookup lookup_;
  std::size_t most_;  // candidates at a time
  Admit admit_;
  Fail fail_;
  boot::Poller::Token token_ = 0;
  bool failed_ = false;
  bool paused_ = false;  // accepting waits for a candidate to go; there is one
  bool queue_was_empty_ = false;
  std::list<Candidate> candidates_;  // oldest first
};

}  // namespace oriel::window
