// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/exchange/fd_exchange.hpp"

#include <algorithm>
#include <cerrno>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/try.hpp"

namespace oriel::window {
namespace {

/// How long to wait where the kernel does not tell when there is room again.
constexpr Duration kPause = std::chrono::milliseconds(1);
/// Unproven connections at a time beyond those that are expected.
constexpr std::size_t kStrangersMost = 256;
/// Where there are as many, one that has not answered after this long gives way to the next in the
/// queue. Honest peers are all about to answer, and late by what their schedulers take.
constexpr Duration kTurn = std::chrono::milliseconds(500);
constexpr int kAcceptsAtOnce = 64;  // then the answers of those accepted get their turn

}  // namespace

/// A connection this process has made, until both sides have proved the secret.
struct FdExchange::Dialed {
  OwnedFd socket;
  boot::AuthInitiator initiator;
  bool responded = false;
  boot::Poller::Token token = 0;
};

/// A connection this process has accepted, until its maker has proved the secret.
struct FdExchange::Candidate {
  OwnedFd socket;
  boot::AuthResponder responder{boot::KeyPurpose::fd_exchange};
  boot::Poller::Token token = 0;
  Deadline turn = Deadline::never();  // it may be dropped after this
};

FdExchange::FdExchange(const boot::Key& key, std::uint64_t realm, std::uint64_t tag,
                       std::vector<int> ranks, int self, std::vector<bool> linked)
    : key_(key),
      realm_(realm),
      tag_(tag),
      ranks_(std::move(ranks)),
      self_(self),
      linked_(std::move(linked)) {
  linked_.resize(ranks_.size(), linked_.empty());
  disconnect();
}

FdExchange::~FdExchange() = default;

void FdExchange::disconnect() {
  poller_.reset();
  listener_.reset();
  paused_ = false;
  candidates_.clear();
  outgoing_.clear();
  dialed_.clear();
  links_.clear();
  dialed_.resize(ranks_.size());
  links_.resize(ranks_.size());
  watched_.assign(ranks_.size(), 0);
  connected_ = false;
  sequence_ = 0;
}

bool FdExchange::is_linked(std::size_t peer) const {
  return peer != static_cast<std::size_t>(self_) && linked_[peer];
}

void FdExchange::fail(Error error) {
  if (!failure_) failure_ = std::move(error);
}

/// The processes with which nothing has been achieved yet: no proof, or while connected no end of
/// the exchange.
std::vector<std::size_t> FdExchange::missing() const {
  std::vector<std::size_t> places;
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (!is_linked(peer)) continue;
    if (links_[peer] == nullptr || (connected_ && !links_[peer]->done())) places.push_back(peer);
  }
  return places;
}

Result<FdSocketName> FdExchange::listen() {
  disconnect();
  FdSocketName name{};
  boot::fill_random(name);
  bool expects = false;
  for (int peer = self_ + 1; peer < size(); ++peer) {
    expects = expects || is_linked(static_cast<std::size_t>(peer));
  }
  if (expects) {
    ORIEL_TRY(listener_, listen_at(name));
  }
  return name;
}

Task<Status> FdExchange::dial(EventLoop& loop, std::vector<FdSocketName> names, Deadline deadline) {
  for (std::size_t peer = 0; peer < static_cast<std::size_t>(self_); ++peer) {
    if (!is_linked(peer)) continue;
    const FdSocketName name = names.at(peer);
    Status made = co_await connect_one(loop, peer, name, deadline);
    if (!made.ok()) {
      disconnect();
      co_return std::move(made).error().with_context(
          fmt::format("connecting to rank {} for file descriptors", ranks_[peer]));
    }
  }
  co_return Status();
}

Task<Status> FdExchange::connect_one(EventLoop& loop, std::size_t peer, FdSocketName name,
                                     Deadline deadline) {
  for (;;) {
    auto socket = connect_to(name);
    if (!socket.ok()) {
      const bool gone = socket.error().native().value == ECONNREFUSED;
      co_return gone ? std::move(socket).error().with_origin(ranks_[peer])
                     : std::move(socket).error();
    }
    if (socket.value().valid()) {
      const boot::AuthClaim claim{ranks_[static_cast<std::size_t>(self_)], ranks_[peer], tag_};
      dialed_[peer] = std::make_unique<Dialed>(
          Dialed{std::move(socket).value(),
                 boot::AuthInitiator(boot::KeyPurpose::fd_exchange, realm_, key_, claim)});
      co_return Status();
    }
    // Its queue is full: strangers, or many peers at once.
    const TimePoint now = loop.clock().now();
    if (deadline.expired(now)) {
      co_return Error(ErrorCode::timeout, "its queue of connections stayed full")
          .with_origin(ranks_[peer]);
    }
    ORIEL_CO_CHECK(co_await loop.sleep_until(earlier(deadline, Deadline::at(now + kPause))));
    ORIEL_CO_CHECK(take_news());
  }
}

Task<Status> FdExchange::prove(EventLoop& loop, Deadline deadline) {
  failure_.reset();
  clock_ = &loop.clock();
  if (Status begun = begin_proofs(); !begun.ok()) fail(std::move(begun).error());
  ORIEL_CO_CHECK(co_await turn(loop, "proving the secret over unix sockets", deadline));
  // What is left are strangers.
  poller_.reset();
  paused_ = false;
  candidates_.clear();
  listener_.reset();
  dialed_.clear();
  dialed_.resize(ranks_.size());
  connected_ = true;
  co_return Status();
}

Status FdExchange::take_news() {
  return group_ != nullptr ? group_->take_news() : Status();
}

Status FdExchange::watch_news() {
  const int fd = group_ != nullptr ? group_->news_fd() : -1;
  if (fd < 0) return {};
  const auto watched = poller_->add(fd, EPOLLIN, [this](std::uint32_t) {
    if (Status news = take_news(); !news.ok()) fail(std::move(news).error());
  });
  if (!watched.ok()) return watched.error();
  return take_news();  // what has been read already shows no more
}

Status FdExchange::begin_proofs() {
  ORIEL_TRY(poller_, boot::Poller::create());
  ORIEL_CHECK(watch_news());
  for (std::size_t peer = 0; peer < dialed_.size(); ++peer) {
    if (dialed_[peer] == nullptr) continue;
    ORIEL_TRY(dialed_[peer]->token,
              poller_->add(dialed_[peer]->socket.get(), EPOLLIN,
                           [this, peer](std::uint32_t) { advance_dialed(peer); }));
  }
  if (listener_.valid()) {
    ORIEL_TRY(listener_token_,
              poller_->add(listener_.get(), EPOLLIN, [this](std::uint32_t) { accept_waiting(); }));
    queue_was_empty_ = false;
    accept_waiting();
    notice_absence();
  }
  return {};
}

Task<Status> FdExchange::turn(EventLoop& loop, const char* what, Deadline deadline) {
  Status waited;
  while (!failure_) {
    const auto places = missing();
    if (places.empty()) co_return Status();
    const bool blocked = std::any_of(links_.begin(), links_.end(), [](const auto& link) {
      return link != nullptr && link->blocked();
    });
    const TimePoint now = loop.clock().now();
    if (deadline.expired(now)) {
      std::vector<int> absent;
      absent.reserve(places.size());
      for (const std::size_t peer : places) absent.push_back(ranks_[peer]);
      fail(Error(ErrorCode::timeout,
                 fmt::format("no answer in time from rank{} {}", absent.size() > 1 ? "s" : "",
                             fmt::join(absent, ", ")))
               .with_origin(absent.front()));
      break;
    }
    Deadline wake = deadline;
    if (blocked) wake = earlier(wake, Deadline::at(now + kPause));
    if (paused_) wake = earlier(wake, candidates_.front().turn);
    waited = co_await loop.readable(poller_->fd(), wake);
    if (!waited.ok() && waited.error().code() != ErrorCode::timeout) {
      fail(std::move(waited).error());
      break;
    }
    if (waited.ok()) {
      if (Status polled = poller_->poll_once(); !polled.ok()) fail(std::move(polled).error());
      if (!connected_) notice_absence();
    }
    if (paused_ && make_room()) accept_waiting();
    if (blocked) retry_blocked();
  }
  Error reason = std::move(*failure_).with_context(what);
  failure_.reset();
  disconnect();
  co_return reason;
}

void FdExchange::accept_waiting() {
  for (int i = 0; i < kAcceptsAtOnce && !failure_; ++i) {
    if (candidates_.size() >= ranks_.size() + kStrangersMost && !make_room()) return pause(true);
    auto accepted = accept_from(listener_);
    if (!accepted.ok()) return fail(std::move(accepted).error());
    auto& [socket, more, shortage] = accepted.value();
    if (shortage) {
      if (candidates_.empty()) return fail(std::move(*shortage));
      if (!make_room()) return pause(true);
      continue;
    }
    if (socket.valid()) challenge(std::move(socket));
    if (more) continue;
    queue_was_empty_ = true;
    return;
  }
}

void FdExchange::challenge(OwnedFd socket) {
  candidates_.emplace_back();
  const auto it = std::prev(candidates_.end());
  it->socket = std::move(socket);
  it->turn = Deadline::after(kTurn, *clock_);
  auto token =
      poller_->add(it->socket.get(), EPOLLIN, [this, it](std::uint32_t) { read_response(it); });
  if (!token.ok()) return fail(std::move(token).error());
  it->token = token.value();
  // A fresh socket has room for one small message.
  const auto sent = send_packet(it->socket, it->responder.challenge());
  if (!sent.ok()) return fail(Error(sent.error()));
  if (sent.value() != PacketOutcome::done) drop(it);
}

/// Drops the connections that have had their turn; false if there are none.
bool FdExchange::make_room() {
  const TimePoint now = clock_->now();
  const std::size_t before = candidates_.size();
  while (!candidates_.empty() && candidates_.front().turn.expired(now)) drop(candidates_.begin());
  return candidates_.size() < before;
}

/// Leaves connections in the queue until one of those accepted has gone.
void FdExchange::pause(bool paused) {
  if (paused == paused_) return;
  paused_ = paused;
  if (Status watched = poller_->watch(listener_token_, paused ? 0U : EPOLLIN); !watched.ok()) {
    fail(std::move(watched).error());
  }
}

void FdExchange::read_response(CandidateIt it) {
  boot::AuthResponse response{};
  const auto got = receive_packet(it->socket, response);
  if (got.ok() && got.value() == PacketOutcome::blocked) return;
  if (!got.ok() && got.error().code() == ErrorCode::system) return fail(Error(got.error()));
  if (!got.ok() || got.value() == PacketOutcome::closed) return drop(it);
  const auto lookup = [this](std::uint64_t realm) { return realm == realm_ ? &key_ : nullptr; };
  const auto confirmation = it->responder.answer(response, lookup);
  if (!confirmation.ok()) return drop(it);
  const auto sent = send_packet(it->socket, confirmation.value());
  if (!sent.ok()) return fail(Error(sent.error()));
  if (sent.value() != PacketOutcome::done) return drop(it);
  admit(it, it->responder.claim());
}

void FdExchange::admit(CandidateIt it, const boot::AuthClaim& claim) {
  const auto behind = std::span(ranks_).subspan(static_cast<std::size_t>(self_) + 1);
  const auto found = std::find(behind.begin(), behind.end(), claim.from);
  if (claim.to != ranks_[static_cast<std::size_t>(self_)] || claim.tag != tag_ ||
      found == behind.end()) {
    return drop(it);
  }
  const std::size_t peer = static_cast<std::size_t>(self_ + 1 + (found - behind.begin()));
  if (!is_linked(peer) || links_[peer] != nullptr) return drop(it);
  poller_->remove(it->token);
  links_[peer] = std::make_unique<FdLink>(std::move(it->socket), ranks_[peer]);
  candidates_.erase(it);
  pause(false);
}

void FdExchange::drop(CandidateIt it) {
  poller_->remove(it->token);
  candidates_.erase(it);
  pause(false);
}

/// When prove() began, all honest connections were in the queue, so once that has been empty and
/// none is left unproven, a peer that has not proved the secret has closed its own.
void FdExchange::notice_absence() {
  std::vector<int> absent;
  for (std::size_t peer = static_cast<std::size_t>(self_) + 1; peer < links_.size(); ++peer) {
    if (is_linked(peer) && links_[peer] == nullptr) absent.push_back(ranks_[peer]);
  }
  if (absent.empty() || !candidates_.empty() || !queue_was_empty_) return;
  fail(Error(ErrorCode::remote,
             fmt::format("a connection was closed before it proved the secret; missing: rank{} {}",
                         absent.size() > 1 ? "s" : "", fmt::join(absent, ", ")))
           .with_origin(absent.front()));
}

void FdExchange::advance_dialed(std::size_t peer) {
  Dialed& dialed = *dialed_[peer];
  const auto fails = [&](Error error) { fail(std::move(error).with_origin(ranks_[peer])); };
  const auto closed = [&] {
    fails(Error(ErrorCode::remote, fmt::format("rank {} closed its connection before it proved the "
                                               "secret",
                                               ranks_[peer])));
  };
  boot::AuthChallenge challenge{};
  boot::AuthConfirmation confirmation{};
  const auto into = dialed.responded ? std::span<std::byte>(confirmation) : std::span(challenge);
  const auto got = receive_packet(dialed.socket, into);
  if (!got.ok() && got.error().code() == ErrorCode::system) return fail(Error(got.error()));
  if (!got.ok()) return fails(Error(got.error()));
  if (got.value() == PacketOutcome::blocked) return;
  if (got.value() == PacketOutcome::closed) return closed();
  if (dialed.responded) {
    if (Status proven = dialed.initiator.confirm(confirmation); !proven.ok()) {
      return fails(std::move(proven).error());
    }
    poller_->remove(dialed.token);
    links_[peer] = std::make_unique<FdLink>(std::move(dialed.socket), ranks_[peer]);
    return;
  }
  auto response = dialed.initiator.respond(challenge);
  if (!response.ok()) return fails(std::move(response).error());
  const auto sent = send_packet(dialed.socket, response.value());
  if (!sent.ok()) return fail(Error(sent.error()));
  if (sent.value() != PacketOutcome::done) return closed();
  dialed.responded = true;
}

Task<Result<std::vector<std::vector<OwnedFd>>>> FdExchange::exchange(
    EventLoop& loop, std::vector<OwnedFd> mine, std::vector<std::size_t> counts,
    Deadline deadline) {
  outgoing_.clear();
  outgoing_.push_back(std::move(mine));
  return exchange_outgoing(loop, std::move(counts), deadline);
}

Task<Result<std::vector<std::vector<OwnedFd>>>> FdExchange::exchange_each(
    EventLoop& loop, std::vector<std::vector<OwnedFd>> mine, std::vector<std::size_t> counts,
    Deadline deadline) {
  outgoing_ = std::move(mine);
  return exchange_outgoing(loop, std::move(counts), deadline);
}

Task<Result<std::vector<std::vector<OwnedFd>>>> FdExchange::exchange_outgoing(
    EventLoop& loop, std::vector<std::size_t> counts, Deadline deadline) {
  failure_.reset();
  if (Status begun = begin_exchange(counts); !begun.ok()) fail(std::move(begun).error());
  ORIEL_CO_CHECK(co_await turn(loop, "exchanging file descriptors", deadline));
  poller_.reset();
  outgoing_.clear();
  std::vector<std::vector<OwnedFd>> arrived(links_.size());
  for (std::size_t peer = 0; peer < links_.size(); ++peer) {
    if (links_[peer] != nullptr) arrived[peer] = links_[peer]->take_arrived();
  }
  co_return arrived;
}

Status FdExchange::begin_exchange(const std::vector<std::size_t>& counts) {
  const bool fits = counts.size() == ranks_.size() &&
                    (outgoing_.size() == 1 || outgoing_.size() == ranks_.size());
  if (!connected_ || !fits) {
    return Error(ErrorCode::internal, "an exchange of file descriptors before connecting");
  }
  std::size_t most = *std::max_element(counts.begin(), counts.end());
  for (const auto& fds : outgoing_) most = std::max(most, fds.size());
  if (most > FdLink::kFdsMost) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} file descriptors in one exchange; the limit is {}", most,
                             FdLink::kFdsMost));
  }
  ORIEL_TRY(poller_, boot::Poller::create());
  ORIEL_CHECK(watch_news());
  ++sequence_;
  for (std::size_t peer = 0; peer < links_.size() && !failure_; ++peer) {
    if (links_[peer] == nullptr) continue;
    links_[peer]->begin(sequence_, outgoing_[outgoing_.size() == 1 ? 0 : peer], counts[peer]);
    ORIEL_TRY(watched_[peer], poller_->add(links_[peer]->fd(), EPOLLIN,
                                           [this, peer](std::uint32_t) { advance_link(peer); }));
    advance_link(peer);
  }
  return {};
}

void FdExchange::advance_link(std::size_t peer) {
  FdLink& link = *links_[peer];
  if (Status advanced = link.advance(); !advanced.ok()) return fail(std::move(advanced).error());
  // What comes after the end is of the next exchange, and would keep the poller awake.
  if (link.done()) poller_->remove(watched_[peer]);
}

void FdExchange::retry_blocked() {
  for (std::size_t peer = 0; peer < links_.size() && !failure_; ++peer) {
    if (links_[peer] != nullptr && links_[peer]->blocked()) advance_link(peer);
  }
}

}  // namespace oriel::window
