// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/dials.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::boot {

Dials::Dials(Poller& poller, const Clock& clock, const LinkIdentity& identity, Liveness& liveness,
             std::function<void(int peer, OwnedFd)> on_authenticated)
    : poller_(&poller),
      clock_(&clock),
      identity_(&identity),
      liveness_(&liveness),
      on_authenticated_(std::move(on_authenticated)) {}

Dials::~Dials() {
  for (const auto& [peer, dial] : dials_) poller_->remove(dial.token);
}

Status Dials::start(int peer, const SocketAddress& address) {
  if (peer >= identity_->rank || peer < 0) {
    return Error(ErrorCode::internal,
                 fmt::format("rank {} does not connect to rank {}", identity_->rank, peer));
  }
  if (dials_.contains(peer)) return {};
  const DialTarget target = {.address = address,
                             .purpose = KeyPurpose::link,
                             .realm = identity_->realm,
                             .key = identity_->key,
                             .claim = {.from = identity_->rank, .to = peer, .tag = 0}};
  dials_.emplace(peer, Dial{.target = target,
                            .retries = Retries({.refused = kRefusalTimeout,
                                                .local = kLocalTimeout,
                                                .lasting = Duration::max()})});
  attempt(peer);
  return {};
}

void Dials::attempt(int peer) {
  Dial& dial = dials_.at(peer);
  dial.retry = Deadline::never();
  auto dialer = Dialer::start(dial.target);
  if (!dialer.ok()) return failed(peer, dialer.error());
  auto token = poller_->add(dialer.value().fd(), dialer.value().wanted_events(),
                            [this, peer](std::uint32_t) { on_event(peer); });
  if (!token.ok()) return failed(peer, token.error());
  dial.dialer = std::move(dialer).value();
  dial.token = token.value();
}

void Dials::on_event(int peer) {
  Dial& dial = dials_.at(peer);
  const Status advanced = dial.dialer->advance();
  if (!advanced.ok()) return failed(peer, advanced.error());
  if (!dial.dialer->authenticated()) {
    const Status watched = poller_->watch(dial.token, dial.dialer->wanted_events());
    if (!watched.ok()) failed(peer, watched.error());
    return;
  }
  poller_->remove(dial.token);
  OwnedFd fd = dial.dialer->release();
  dials_.erase(peer);
  on_authenticated_(peer, std::move(fd));
}

void Dials::failed(int peer, const Error& error) {
  Dial& dial = dials_.at(peer);
  poller_->remove(dial.token);
  dial.token = 0;
  dial.dialer.reset();
  dial.last_error = error.to_string();
  const TimePoint now = clock_->now();
  switch (dial.retries.after(error, now)) {
    case Retries::Decision::try_again:
      dial.retry = Deadline::at(now + dial.retries.pause());
      return;
    case Retries::Decision::local:
    case Retries::Decision::lasting:
      liveness_->aborted(identity_->rank,
                         Error(error).with_context(fmt::format("connecting to rank {}", peer)));
      break;
    case Retries::Decision::refused:
      liveness_->died(
          peer, fmt::format("nobody listens at {} any more", dial.target.address.to_string()));
      break;
  }
  dials_.erase(peer);
}

std::string Dials::last_error(int peer) const {
  const auto it = dials_.find(peer);
  return it == dials_.end() ? std::string() : it->second.last_error;
}

Deadline Dials::next_timer() const {
  Deadline next = Deadline::never();
  for (const auto& [peer, dial] : dials_) next = earlier(next, dial.retry);
  return next;
}

void Dials::retry() {
  const TimePoint now = clock_->now();
  std::vector<int> due;
  for (const auto& [peer, dial] : dials_) {
    if (dial.retry.expired(now)) due.push_back(peer);
  }
  for (const int peer : due) attempt(peer);
}

void Dials::send_to_unconfirmed(ByteView words) {
  for (auto& [peer, dial] : dials_) {
    if (!dial.dialer || !dial.dialer->awaits_confirmation()) continue;
    static_cast<void>(write_some(dial.dialer->fd(), std::span(&words, 1)));
  }
}

}  // namespace oriel::boot
