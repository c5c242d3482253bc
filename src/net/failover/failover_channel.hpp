// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>

#include "base/bytes.hpp"
#include "boot/session/session.hpp"

namespace oriel::net {

/// Channel by which one end of a queue sends the peer its statements on paths. It uses no NIC of
/// these paths, so that it works when one of these NICs fails. Messages may be lost, duplicated,
/// delayed and reordered. Messages come from the peer and from nobody else. Neither call blocks.
/// Thread-safe.
class FailoverChannel {
 public:
  virtual ~FailoverChannel() = default;
  virtual void send(ByteView message) = 0;
  /// Returns false if no message has come.
  virtual bool receive(Bytes& message) = 0;
};

/// Channel over the bootstrap's links, by ranks in between where the two are not linked. It works
/// while the session's links are pumped, as a communicator's monitor does. The session outlives it.
class SessionFailoverChannel final : public FailoverChannel {
 public:
  SessionFailoverChannel(boot::Session& session, int peer) : session_(session), peer_(peer) {}
  void send(ByteView message) override {
    static_cast<void>(session_.peers().send_note(peer_, message));
  }
  bool receive(Bytes& message) override {
    auto note = session_.peers().take_note(boot::NoteTopic::failover, peer_);
    if (note.has_value()) message = std::move(note->text);
    return note.has_value();
  }

 private:
  boot::Session& session_;
  int peer_;
};

}  // namespace oriel::net
