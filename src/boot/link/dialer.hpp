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
  /// Goes as far as it can without waiting. An error ends the attempt.
  Status advance();
  bool proven() const { return state_ == State::proven; }
  /// Returns whether the proof was sent; the responder may take this side for proven.
  bool awaits_verdict() const { return state_ == State::confirmation; }
  /// Returns, after an error, whether the responder has closed the connection because of the proof.
  /// A responder with too many callers sends kComeAgain instead.
  bool rejected() const {
    const bool is_put_off = have_ == kComeAgain.size() && received_[0] == kComeAgain[0];
    return awaits_verdict() && !is_put_off;
  }
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

/// Returns whether `error` says that nobody listens at the address.
bool is_refusal(const Error& error);
/// Returns whether `error` comes from a call of this host, not from the network or the peer.
bool is_local_failure(const Error& error);

/// Decides what follows a failed attempt to connect: another one after a pause, or the end. An
/// attempt that is cut off is made again, since a listener in a crush closes honest connections
/// too. The end comes when the same failure has lasted for as long as `patience` says, and for more
/// attempts than bad luck explains.
class Retries {
 public:
  struct Patience {
    Duration refused = Duration::max();   ///< nobody listens
    Duration rejected = Duration::max();  ///< whoever listens rejects the proof
    Duration local{};                     ///< a call of this host fails, however often
    Duration lasting{};                   ///< what another attempt will hardly change
  };
  enum class Verdict : std::uint8_t { try_again, refused, rejected, local, lasting };

  explicit Retries(const Patience& patience) : patience_(patience) {}
  /// `rejected` as of Dialer.
  Verdict after(const Error& error, bool rejected, TimePoint now);
  /// The pause before the next attempt; each is longer than the one before, up to a limit.
  Duration pause();

 private:
  static constexpr int kAttempts = 8;
  Patience patience_;
  Verdict last_ = Verdict::try_again;  // what the last attempt would end in
  TimePoint since_;
  int count_ = 0;
  Duration pause_ = std::chrono::milliseconds(2);
};

/// Connects and proves, trying again as Retries has it, at most until `deadline`.
Task<Result<OwnedFd>> dial(EventLoop& loop, DialTarget target, Retries::Patience patience,
                           Deadline deadline);

}  // namespace oriel::boot
