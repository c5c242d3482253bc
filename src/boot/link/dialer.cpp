// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/dialer.hpp"

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
      purpose_(target.purpose),
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
    case State::authenticated:
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
  const auto full = fill(AuthSizes::kConfirmation);
  if (!full.ok()) {
    const bool is_refused = have_ == kAuthRefused.size() && received_[0] == kAuthRefused[0];
    return is_refused ? refusal() : full.error();
  }
  if (!full.value()) return {};
  ORIEL_CHECK(initiator_.confirm(std::span(received_).first<AuthSizes::kConfirmation>()));
  state_ = State::authenticated;
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

Error Dialer::refusal() const {
  if (purpose_ == KeyPurpose::rendezvous) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} refuses the handshake: it does not know the unique id, or not any "
                             "more",
                             remote_.to_string()))
        .with_hint(kUsedIdHint);
  }
  return Error(ErrorCode::invalid_argument,
               fmt::format("{} refuses the handshake", remote_.to_string()))
      .with_hint("give all ranks the same unique id; another communicator listens there");
}

namespace {

Task<Result<OwnedFd>> dial_once(EventLoop& loop, const DialTarget& target, Deadline deadline) {
  ORIEL_CO_TRY(Dialer dialer, Dialer::start(target));
  while (!dialer.authenticated()) {
    if (dialer.wanted_events() == EPOLLOUT) {
      ORIEL_CO_CHECK(co_await loop.writable(dialer.fd(), deadline));
    } else {
      ORIEL_CO_CHECK(co_await loop.readable(dialer.fd(), deadline));
    }
    ORIEL_CO_CHECK(dialer.advance());
  }
  co_return dialer.release();
}

/// Adds a hint to the error of a listener that has refused connections for too long. A root service
/// stops listening once none of its process's ids is left.
Error nobody_listens(Error error, const DialTarget& target) {
  return std::move(error).with_hint(
      target.purpose == KeyPurpose::rendezvous
          ? "the process that made the unique id has ended, a firewall rejects connections, the id "
            "was used before, or no rank came for 10 minutes"
          : "the process that listened there has ended, or a firewall rejects connections");
}

}  // namespace

Task<Result<OwnedFd>> dial(EventLoop& loop, DialTarget target, Retries::Timeouts timeout,
                           Deadline deadline) {
  const Clock& clock = loop.clock();
  Retries retries(timeout);
  std::optional<Error> last;
  for (;;) {
    auto connection = co_await dial_once(loop, target, deadline);
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
    const auto decision = retries.after(error, now);
    if (decision == Retries::Decision::refused) co_return nobody_listens(std::move(error), target);
    if (decision != Retries::Decision::try_again) co_return error;
    last = std::move(error);
    const Deadline next = earlier(deadline, Deadline::at(now + retries.pause()));
    ORIEL_CO_CHECK(co_await loop.sleep_until(next));
  }
}

}  // namespace oriel::boot
