// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "base/event_loop.hpp"
#include "base/fd.hpp"
#include "base/task.hpp"
#include "boot/auth/auth.hpp"
#include "boot/link/tcp.hpp"

namespace oriel::boot {

/// Whom to connect to and what to prove there.
struct DialTarget {
  SocketAddress address;
  KeyPurpose purpose = KeyPurpose::link;
  std::uint64_t realm = 0;
  Key key;
  AuthClaim claim;
};

/// One attempt to connect and to prove each other, as a state machine over a socket that does not
/// block: when the socket is ready for wanted_events(), call advance().
class Dialer {
 public:
  static Result<Dialer> start(const DialTarget& target);

  int fd() const { return fd_.get(); }
  std::uint32_t wanted_events() const;  ///< EPOLLIN or EPOLLOUT
  /// Goes as far as it can without waiting. An error ends the attempt.
  Status advance();
  bool proven() const { return state_ == State::proven; }
  /// Whether our proof is with the responder, so that a connection closed now was rejected, unless
  /// it was put off.
  bool awaits_verdict() const { return state_ == State::confirmation; }
  /// Whether the responder has asked to come again (kComeAgain).
  bool is_put_off() const { return have_ == kComeAgain.size() && received_[0] == kComeAgain[0]; }
  /// The connection; requires proven().
  OwnedFd release() { return std::move(fd_); }

 private:
  enum class State : std::uint8_t { connecting, challenge, confirmation, proven };
  Dialer(const DialTarget& target, OwnedFd fd);
  Status on_connected();
  Status on_challenge();
  Status on_confirmation();
  /// False: more bytes are needed.
  Result<bool> fill(std::size_t bytes);

  SocketAddress remote_;
  OwnedFd fd_;
  AuthInitiator initiator_;
  State state_ = State::connecting;
  std::array<std::byte, AuthSizes::kChallenge> received_{};
  std::size_t have_ = 0;
};

/// Whether `error` says that nobody listens where we tried to connect.
bool is_refusal(const Error& error);
/// Whether `error` is of this host's own calls, and not of the network or of who is at its other
/// end.
bool is_local_failure(const Error& error);

/// Connects and proves, trying again until `deadline` where an attempt is cut off, since a listener
/// in a crush closes honest connections too. An address where nobody listens, or whoever listens
/// rejects the proof, for `patience` on end is an error.
Task<Result<OwnedFd>> dial(EventLoop& loop, DialTarget target, Duration patience,
                           Deadline deadline);

}  // namespace oriel::boot
