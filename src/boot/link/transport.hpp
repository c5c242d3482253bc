// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/task.hpp"

namespace oriel::boot {

/// Carries whole messages between ranks, in order for each pair. Set-up protocols use only this
/// interface. Real runs implement it over sockets; tests use a modelled network with its own clock.
///
/// A failure may name another rank than the peer, such as one that has died. After the first
/// failure of a pair every later send() fails too. A receive() may still return messages that a
/// dead peer had sent.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Sends `message` to world rank `peer`. Completes once the message is queued, perhaps before the
  /// peer has read it.
  virtual Task<Status> send(int peer, Bytes message) = 0;

  /// Returns the next message from world rank `peer`. Fails at the deadline of the operation in
  /// progress, if the peer has died or left, or if the operation is stopped.
  virtual Task<Result<Bytes>> receive(int peer) = 0;

  /// Aborts the operation in progress on the other ranks, so that they fail with `reason` instead
  /// of waiting for this rank. Does not wait.
  virtual void give_up(const Error& reason) { static_cast<void>(reason); }

  /// Returns a descriptor for waits during an operation that are not on this transport. The
  /// descriptor is readable when receive_notices() may have a result; -1 if it never has.
  virtual int notice_fd() const { return -1; }
  /// Processes what has arrived, without waiting. An error ends the operation in progress: an abort
  /// on any rank, a rank's death, or the reason why another rank gave up.
  virtual Status receive_notices() { return {}; }
};

}  // namespace oriel::boot
