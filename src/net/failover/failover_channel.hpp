// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>

#include "base/bytes.hpp"
#include "boot/session/session.hpp"

namespace oriel::net {

/// One end's way to tell its peer which path to take. It goes by no NIC that it speaks of, so that
/// it is there when one of these fails. What is sent may be lost, repeated, late and out of order;
/// who sends is the peer and nobody else. Neither call blocks. Thread-safe.
class FailoverChannel {
 public:
  virtual ~FailoverChannel() = default;
  virtual void send(ByteView message) = 0;
  /// False if nothing has come.
  virtual bool receive(Bytes& message) = 0;
};

/// Over the links of the bootstrap, by ranks in between where the two are not linked. It works
/// while the session's links are pumped, as a communicator's monitor does; the session outlives it.
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
