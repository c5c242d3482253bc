// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/fd.hpp"

namespace oriel::perf {

using Json = nlohmann::json;

/// A stream socket between the coordinator and one rank. It carries JSON messages, each with its
/// length in front. Used between rounds only, never during a timed loop. If a received message is
/// not a JSON object or is longer than 1 MiB, receive() fails.
class Channel {
 public:
  Channel() = default;
  explicit Channel(OwnedFd socket) : socket_(std::move(socket)) {}

  /// Block until the message is through. Fail with `timeout` at the deadline, `remote` if the peer
  /// closed the connection, and `aborted` after a signal (end_waits_on_signals()).
  Status send(const Json& message, Deadline deadline) const;
  Result<Json> receive(Deadline deadline) const;

  int fd() const { return socket_.get(); }
  explicit operator bool() const { return socket_.valid(); }
  void close() { socket_.reset(); }

 private:
  OwnedFd socket_;
};

/// Waits until poll() reports one of `events`, an error or a hang-up on the descriptor. Fails with
/// `timeout` at the deadline, and with `aborted` once signal_received() is not 0.
Status wait_ready(int fd, short events, Deadline deadline);

/// Installs handlers for SIGINT, SIGTERM and SIGHUP. After such a signal every wait_ready() of this
/// process fails, so that the coordinator can end its ranks.
void end_waits_on_signals();
/// Returns the signal received since end_waits_on_signals(), or 0.
int signal_received();
/// Restores the default handlers in a forked rank.
void default_signals();

}  // namespace oriel::perf
