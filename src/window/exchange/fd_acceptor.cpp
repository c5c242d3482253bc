// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/exchange/fd_acceptor.hpp"

#include <utility>

#include "base/try.hpp"
#include "window/exchange/fd_link.hpp"

namespace oriel::window {
namespace {

/// Unproven connections at a time beyond those that are expected.
constexpr std::size_t kStrangersMost = 256;
/// Where there are as many, one that has not answered after this long gives way to the next in the
/// queue. Honest peers are all about to answer, and late by what their schedulers take.
constexpr Duration kTurn = std::chrono::milliseconds(500);
constexpr int kAcceptsAtOnce = 64;  // then the answers of those accepted get their turn

}  // namespace

FdAcceptor::FdAcceptor(boot::Poller& poller, const Clock& clock, OwnedFd listener,
                       boot::AuthResponder::KeyLookup lookup, std::size_t expected, Admit admit,
                       Fail fail)
    : poller_(poller),
      clock_(clock),
      listener_(std::move(listener)),
      lookup_(std::move(lookup)),
      most_(expected + kStrangersMost),
      admit_(std::move(admit)),
      fail_([this, fail = std::move(fail)](Error error) {
        failed_ = true;
        fail(std::move(error));
      }) {}

Status FdAcceptor::start() {
  ORIEL_TRY(token_,
            poller_.add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept_waiting(); }));
  accept_waiting();
  return {};
}

void FdAcceptor::go_on() {
  if (paused_ && make_room()) accept_waiting();
}

Deadline FdAcceptor::wake() const {
  return paused_ ? candidates_.front().turn : Deadline::never();
}

void FdAcceptor::accept_waiting() {
  for (int i = 0; i < kAcceptsAtOnce && !failed_; ++i) {
    if (candidates_.size() >= most_ && !make_room()) return pause(true);
    auto accepted = accept_from(listener_);
    if (!accepted.ok()) return fail_(std::move(accepted).error());
    auto& [socket, more, shortage] = accepted.value();
    if (shortage) {
      if (candidates_.empty()) return fail_(std::move(*shortage));
      if (!make_room()) return pause(true);
      continue;
    }
    if (socket.valid()) challenge(std::move(socket));
    if (more) continue;
    queue_was_empty_ = true;
    return;
  }
}

void FdAcceptor::challenge(OwnedFd socket) {
  candidates_.emplace_back();
  const auto it = std::prev(candidates_.end());
  it->socket = std::move(socket);
  it->turn = Deadline::after(kTurn, clock_);
  auto token =
      poller_.add(it->socket.get(), EPOLLIN, [this, it](std::uint32_t) { read_response(it); });
  if (!token.ok()) return fail_(std::move(token).error());
  it->token = token.value();
  // A fresh socket has room for one small message.
  const auto sent = send_packet(it->socket, it->responder.challenge());
  if (!sent.ok()) return fail_(Error(sent.error()));
  if (sent.value() != PacketOutcome::done) drop(it);
}

/// Drops the connections that have had their turn; false if there are none.
bool FdAcceptor::make_room() {
  const TimePoint now = clock_.now();
  const std::size_t before = candidates_.size();
  while (!candidates_.empty() && candidates_.front().turn.expired(now)) drop(candidates_.begin());
  return candidates_.size() < before;
}

/// Leaves connections in the queue until one of those accepted has gone.
void FdAcceptor::pause(bool paused) {
  if (paused == paused_) return;
  paused_ = paused;
  if (Status watched = poller_.watch(token_, paused ? 0U : EPOLLIN); !watched.ok()) {
    fail_(std::move(watched).error());
  }
}

void FdAcceptor::read_response(CandidateIt it) {
  boot::AuthResponse response{};
  const auto got = receive_packet(it->socket, response);
  if (got.ok() && got.value() == PacketOutcome::blocked) return;
  if (!got.ok() && got.error().code() == ErrorCode::system) return fail_(Error(got.error()));
  if (!got.ok() || got.value() == PacketOutcome::closed) return drop(it);
  const auto confirmation = it->responder.answer(response, lookup_);
  if (!confirmation.ok()) return drop(it);
  const auto sent = send_packet(it->socket, confirmation.value());
  if (!sent.ok()) return fail_(Error(sent.error()));
  if (sent.value() != PacketOutcome::done) return drop(it);
  poller_.remove(it->token);
  OwnedFd socket = std::move(it->socket);
  const boot::AuthClaim claim = it->responder.claim();
  candidates_.erase(it);
  pause(false);
  admit_(std::move(socket), claim);
}

void FdAcceptor::drop(CandidateIt it) {
  poller_.remove(it->token);
  candidates_.erase(it);
  pause(false);
}

}  // namespace oriel::window
