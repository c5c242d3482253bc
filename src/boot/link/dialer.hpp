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

/// Address to connect to, and the key to prove there.
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
  /// Goes as far as it can without waiting. An error ends the attempt; it is lasting (Retries) if
  /// the responder has refused our proof.
  Status advance();
  bool proven() const { return state_ == State::proven; }
  /// Returns whether the proof was sent; the responder may take this side for proven.
  bool awaits_verdict() const { return state_ == State::confirmation; }
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
  Error refusal() const;

  SocketAddress remote_;
  KeyPurpose purpose_;
  OwnedFd fd_;
  AuthInitiator initiator_;
  State state_ = State::connecting;
  std::array<std::byte, AuthSizes::kChallenge> received_{};
  std::size_t have_ = 0;
};

/// Connects and proves, trying again as Retries has it, at most until `deadline`.
Task<Result<OwnedFd>> dial(EventLoop& loop, DialTarget target, Retries::Patience patience,
                           Deadline deadline);

}  // namespace oriel::boot
