// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "base/event_loop.hpp"
#include "base/fd.hpp"
#include "base/task.hpp"
#include "boot/auth/auth.hpp"
#include "boot/link/retries.hpp"
#include "boot/link/tcp.hpp"

namespace oriel::boot {

/// Address to connect to, and the key to prove to its listener.
struct DialTarget {
  SocketAddress address;
  KeyPurpose purpose = KeyPurpose::link;
  std::uint64_t realm = 0;
  Key key;
  AuthClaim claim;
};

/// One attempt to connect and to run the handshake, as a state machine over a non-blocking socket.
/// When the socket is ready for wanted_events(), call advance().
class Dialer {
 public:
  static Result<Dialer> start(const DialTarget& target);

  int fd() const { return fd_.get(); }
  std::uint32_t wanted_events() const;  ///< EPOLLIN or EPOLLOUT
  /// Advances without waiting, perhaps less far than possible: call it again when the socket is
  /// ready. An error ends the attempt. If the responder refused the MAC, the error counts as
  /// lasting (Retries).
  Status advance();
  bool authenticated() const { return state_ == State::authenticated; }
  /// Returns whether the response has been sent but not confirmed; the responder may already
  /// consider this side authenticated.
  bool awaits_confirmation() const { return state_ == State::confirmation; }
  /// Returns the connection; requires authenticated().
  OwnedFd release() { return std::move(fd_); }

 private:
  enum class State : std::uint8_t { connecting, challenge, confirmation, authenticated };
  Dialer(const DialTarget& target, OwnedFd fd);
  Status on_connected();
  Status on_challenge();
  Status on_confirmation();
  /// Returns false if more bytes are needed.
  Result<bool> fill(std::size_t bytes);
  Error refusal() const;

  SocketAddress remote_;
  KeyPurpose purpose_;
  OwnedFd fd_;
  AuthInitiator initiator_;
  State state_ = State::connecting;
  std::array<std::byte, AuthSizes::kChallenge> received_{};
  std::size_t have_ = 0;
};

/// Connects and proves the key. Retries as `timeout` allows, until `deadline` at the latest.
Task<Result<OwnedFd>> dial(EventLoop& loop, DialTarget target, Retries::Timeouts timeout,
                           Deadline deadline);

}  // namespace oriel::boot
