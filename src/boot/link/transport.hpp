// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/task.hpp"

namespace oriel::boot {

/// Carries whole messages between ranks, in order for each pair. The set-up protocols know only
/// this; sockets implement it for real runs, a queue in memory for tests, a modelled network with a
/// clock of its own for simulations.
///
/// A failure names the peer. After the first failure of a pair every later call on it fails too.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Hands `message` to the transport for the world rank `peer`; ends once it is queued, which may
  /// be before the peer has read it.
  virtual Task<Status> send(int peer, Bytes message) = 0;

  /// The next message from world rank `peer`; ends with an error at the deadline of the operation
  /// in progress, when the peer has died or left, or when the operation is stopped.
  virtual Task<Result<Bytes>> receive(int peer) = 0;

  /// Tells the other ranks that this one cannot go on with the operation in progress, so that they
  /// end with `reason` instead of waiting for it. Does not wait.
  virtual void give_up(const Error& reason) { static_cast<void>(reason); }

  /// For waits in the midst of an operation that are not on this transport: a descriptor that can
  /// be read when take_news() may have something to say; -1 if it never has.
  virtual int news_fd() const { return -1; }
  /// Takes in what has arrived, without waiting. An error ends the operation in progress: an abort,
  /// here or elsewhere, a rank's death, or what another rank could not go on for.
  virtual Status take_news() { return {}; }
};

}  // namespace oriel::boot
