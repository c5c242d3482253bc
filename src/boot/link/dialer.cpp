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

constexpr Duration kLongestPause = std::chrono::milliseconds(100);

/// One attempt; sets `rejected` as Dialer::rejected() says.
Task<Result<OwnedFd>> dial_once(EventLoop& loop, const DialTarget& target, Deadline deadline,
                                bool& rejected) {
  rejected = false;
  ORIEL_CO_TRY(Dialer dialer, Dialer::start(target));
  while (!dialer.proven()) {
    if (dialer.wanted_events() == EPOLLOUT) {
      ORIEL_CO_CHECK(co_await loop.writable(dialer.fd(), deadline));
    } else {
      ORIEL_CO_CHECK(co_await loop.readable(dialer.fd(), deadline));
    }
    Status advanced = dialer.advance();
    if (!advanced.ok()) {
      rejected = dialer.rejected();
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

}  // namespace

Retries::Verdict Retries::after(const Error& error, bool rejected, TimePoint now) {
  Verdict verdict = Verdict::try_again;
  Duration patience = Duration::max();
  if (!can_try_again(error)) {
    const bool is_local = is_local_failure(error);
    verdict = is_local ? Verdict::local : Verdict::lasting;
    patience = is_local ? patience_.local : patience_.lasting;
  } else if (is_refusal(error)) {
    verdict = Verdict::refused;
    patience = patience_.refused;
  } else if (rejected) {
    verdict = Verdict::rejected;
    patience = patience_.rejected;
  }
  if (verdict != last_) {
    last_ = verdict;
    since_ = now;
    count_ = 0;
  }
  ++count_;
  const bool needs_many = verdict == Verdict::refused || verdict == Verdict::rejected;
  const bool has_lasted = now - since_ >= patience && (!needs_many || count_ >= kAttempts);
  return has_lasted ? verdict : Verdict::try_again;
}

Duration Retries::pause() {
  const Duration pause = pause_;
  pause_ = std::min(pause_ * 2, kLongestPause);
  return pause;
}

Task<Result<OwnedFd>> dial(EventLoop& loop, DialTarget target, Retries::Patience patience,
                           Deadline deadline) {
  const Clock& clock = loop.clock();
  Retries retries(patience);
  std::optional<Error> last;
  for (;;) {
    bool rejected = false;
    auto connection = co_await dial_once(loop, target, deadline, rejected);
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
    const auto verdict = retries.after(error, rejected, now);
    if (verdict == Retries::Verdict::local || verdict == Retries::Verdict::lasting) co_return error;
    if (verdict != Retries::Verdict::try_again) {
      co_return no_use(std::move(error), target, verdict == Retries::Verdict::refused);
    }
    last = std::move(error);
    const Deadline next = earlier(deadline, Deadline::at(now + retries.pause()));
    ORIEL_CO_CHECK(co_await loop.sleep_until(next));
  }
}

}  // namespace oriel::boot
