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

/// A stream socket between the coordinator and one rank, carrying JSON messages with their length
/// in front. Used between rounds only, never while a clock runs. A message that is no JSON object
/// or longer than 1 MiB is an error.
class Channel {
 public:
  Channel() = default;
  explicit Channel(OwnedFd socket) : socket_(std::move(socket)) {}

  /// Both block until done, the deadline, or the end of the other side, which is an error of
  /// code `remote`; the deadline's has code `timeout`.
  Status send(const Json& message, Deadline deadline) const;
  Result<Json> receive(Deadline deadline) const;

  int fd() const { return socket_.get(); }
  explicit operator bool() const { return socket_.valid(); }
  void close() { socket_.reset(); }

 private:
  OwnedFd socket_;
};

/// Waits for the readiness of one descriptor. Returns whether it came before the deadline; also
/// returns early, with an error of code `aborted`, when this process was told to end by a signal.
Status wait_ready(int fd, short events, Deadline deadline);

/// From now on SIGINT, SIGTERM and SIGHUP end every wait_ready() of this process with an error,
/// so that the coordinator can take its ranks down with it.
void end_waits_on_signals();
/// The signal that came, or 0.
int signal_received();
/// Undoes end_waits_on_signals() in a forked rank.
void default_signals();

}  // namespace oriel::perf
