// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/dialer.hpp"

#include <algorithm>
#include <cerrno>
#include <optional>

#include <fmt/format.h>

#include "base/try.hpp"
#include "boot/auth/unique_id_format.hpp"

namespace oriel::boot {

Result<Dialer> Dialer::start(const DialTarget& target) {
  ORIEL_TRY(OwnedFd fd, start_connect(target.address));
  return Dialer(target, std::move(fd));
}

Dialer::Dialer(const DialTarget& target, OwnedFd fd)
    : remote_(target.address),
      fd_(std::move(fd)),
      initiator_(target.purpose, target.realm, target.key, target.claim) {}

std::uint32_t Dialer::wanted_events() const {
  return state_ == State::connecting ? EPOLLOUT : EPOLLIN;
}

Status Dialer::advance() {
  switch (state_) {
    case State::connecting:
      return on_connected();
    case State::challenge:
      return on_challenge();
    case State::confirmation:
      return on_confirmation();
    case State::proven:
      return {};
  }
  return {};
}

Status Dialer::on_connected() {
  ORIEL_CHECK(connect_outcome(fd_.get(), remote_));
  state_ = State::challenge;
  return {};
}

Status Dialer::on_challenge() {
  ORIEL_TRY(const bool full, fill(AuthSizes::kChallenge));
  if (!full) return {};
  ORIEL_TRY(const AuthResponse response,
            initiator_.respond(std::span(received_).first<AuthSizes::kChallenge>()));
  const ByteView view = response;
  ORIEL_TRY(const IoOutcome sent, write_some(fd_.get(), std::span(&view, 1)));
  if (sent.bytes != view.size()) {
    return Error(ErrorCode::remote,
                 fmt::format("{} closed the connection during the handshake", remote_.to_string()));
  }
  state_ = State::confirmation;
  have_ = 0;
  return on_confirmation();
}

Status Dialer::on_confirmation() {
  ORIEL_TRY(const bool full, fill(AuthSizes::kConfirmation));
  if (!full) return {};
  ORIEL_CHECK(initiator_.confirm(std::span(received_).first<AuthSizes::kConfirmation>()));
  state_ = State::proven;
  return {};
}

Result<bool> Dialer::fill(std::size_t bytes) {
  ORIEL_TRY(const IoOutcome got,
            read_some(fd_.get(), std::span(received_).subspan(have_, bytes - have_)));
  if (got.closed) {
    return Error(ErrorCode::remote,
                 fmt::format("{} closed the connection during the handshake", remote_.to_string()));
  }
  have_ += got.bytes;
  return have_ == bytes;
}

bool is_refusal(const Error& error) {
  return error.native().domain == NativeDomain::os_errno && error.native().value == ECONNREFUSED;
}

namespace {

bool can_try_again(const Error& error) {
  if (error.code() == ErrorCode::remote) return true;
  if (error.native().domain != NativeDomain::os_errno) return false;
  switch (error.native().value) {
    case ECONNREFUSED:
    case ECONNRESET:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ETIMEDOUT:
    case EADDRNOTAVAIL:
    case EAGAIN:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool is_local_failure(const Error& error) {
  return error.code() == ErrorCode::system && !can_try_again(error);
}

namespace {

constexpr Duration kFirstPause = std::chrono::milliseconds(2);
constexpr Duration kLongestPause = std::chrono::milliseconds(100);

enum class Failure : std::uint8_t { other, refused, rejected };

Task<Result<OwnedFd>> dial_once(EventLoop& loop, const DialTarget& target, Deadline deadline,
                                Failure& failure) {
  failure = Failure::other;
  ORIEL_CO_TRY(Dialer dialer, Dialer::start(target));
  while (!dialer.proven()) {
    if (dialer.wanted_events() == EPOLLOUT) {
      ORIEL_CO_CHECK(co_await loop.writable(dialer.fd(), deadline));
    } else {
      ORIEL_CO_CHECK(co_await loop.readable(dialer.fd(), deadline));
    }
    Status advanced = dialer.advance();
    if (!advanced.ok()) {
      if (is_refusal(advanced.error())) failure = Failure::refused;
      if (dialer.awaits_verdict() && !dialer.is_put_off()) failure = Failure::rejected;
      co_return std::move(advanced).error();
    }
  }
  co_return dialer.release();
}

/// The error after a listener has refused connections, or rejected proofs, for long enough. The one
/// of a unique id ends when none of its process's ids is left, so a used one may look like either.
Error no_use(Error error, const DialTarget& target, bool refused) {
  if (target.purpose != KeyPurpose::rendezvous) {
    return std::move(error).with_hint(
        refused ? "the process that listened there has ended, or a firewall rejects connections"
                : "the process that listens there is of another communicator");
  }
  if (refused) {
    return std::move(error).with_hint(
        "the process that made the unique id has ended, or a firewall rejects connections, or the "
        "id is of no use any more: used before, or 10 minutes without a rank");
  }
  return Error(ErrorCode::invalid_usage,
               fmt::format("{} closed the connection during the handshake: it does not know the "
                           "unique id, or not any more",
                           target.address.to_string()))
      .with_hint(kUsedIdHint);
}

/// How long the same failure has come back.
class Streak {
 public:
  /// Whether `failure` has now lasted for `patience` and for more attempts than bad luck explains.
  bool add(Failure failure, TimePoint now, Duration patience) {
    if (failure != failure_ || failure == Failure::other) {
      failure_ = failure;
      since_ = now;
      count_ = 0;
    }
    ++count_;
    return failure != Failure::other && count_ >= kAttempts && now - since_ >= patience;
  }

 private:
  static constexpr int kAttempts = 8;
  Failure failure_ = Failure::other;
  TimePoint since_;
  int count_ = 0;
};

}  // namespace

Task<Result<OwnedFd>> dial(EventLoop& loop, DialTarget target, Duration patience,
                           Deadline deadline) {
  const Clock& clock = loop.clock();
  Streak streak;
  Duration pause = kFirstPause;
  std::optional<Error> last;
  for (;;) {
    Failure failure = Failure::other;
    auto connection = co_await dial_once(loop, target, deadline, failure);
    if (connection.ok()) co_return connection;
    Error error = std::move(connection).error();
    const TimePoint now = clock.now();
    if (deadline.expired(now)) {
      if (last) error = Error(ErrorCode::timeout, "the deadline has passed: " + last->to_string());
      co_return std::move(error)
          .with_hint(target.purpose == KeyPurpose::rendezvous
                         ? "the process that made the unique id is stopped, gone or unreachable"
                         : "the process that listens there is stopped, gone or unreachable")
          .with_context("connecting to " + target.address.to_string());
    }
    if (!can_try_again(error)) co_return error;
    if (streak.add(failure, now, patience)) {
      co_return no_use(std::move(error), target, failure == Failure::refused);
    }
    last = std::move(error);
    const Deadline next = earlier(deadline, Deadline::after(pause, clock));
    ORIEL_CO_CHECK(co_await loop.sleep_until(next));
    pause = std::min(pause * 2, kLongestPause);
  }
}

}  // namespace oriel::boot
