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

/// Retry interval for events that the kernel does not report.
constexpr Duration kPause = std::chrono::milliseconds(1);

Result<boot::IoOutcome> outcome_of(Result<PacketOutcome> packet, std::size_t bytes) {
  if (!packet.ok()) return std::move(packet).error();
  return boot::IoOutcome{.bytes = *packet == PacketOutcome::done ? bytes : 0,
                         .would_block = *packet == PacketOutcome::blocked,
                         .closed = *packet == PacketOutcome::closed};
}

constexpr boot::SocketCalls kMessageCalls = {
    .accept = accept_packets,
    .read =
        [](int fd, std::span<std::byte> out) {
          return outcome_of(receive_packet(fd, out), out.size());
        },
    .write =
        [](int fd, std::span<const ByteView> buffers) {
          return outcome_of(send_packet(fd, buffers.front()), buffers.front().size());
        },
    .may_authenticate = same_user,
};

}  // namespace

/// A connection made by this process, until both sides have proved the secret.
struct FdExchange::Dialed {
  OwnedFd socket;
  boot::AuthInitiator initiator;
  bool responded = false;
  boot::Poller::Token token = 0;
};

/// State of another process.
struct FdExchange::Peer {
  int rank;
  bool linked;                     // to be connected to this process
  std::unique_ptr<Dialed> dialed;  // until authenticate() ends; null for peers that dial
  std::unique_ptr<FdLink> link;    // set once both sides have proved the secret
  boot::Poller::Token watched = 0;
};

FdExchange::FdExchange(const boot::Key& key, std::uint64_t realm, std::uint64_t tag,
                       std::vector<int> ranks, int self, const std::vector<bool>& linked)
    : key_(key), realm_(realm), tag_(tag), self_(static_cast<std::size_t>(self)) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool is_linked = i != self_ && (linked.empty() || linked[i]);
    peers_.push_back(Peer{.rank = ranks[i], .linked = is_linked, .dialed = {}, .link = {}});
  }
  disconnect();
}

FdExchange::~FdExchange() = default;

void FdExchange::disconnect() {
  acceptor_.reset();
  poller_.reset();
  listener_.reset();
  outgoing_.clear();
  for (Peer& peer : peers_) {
    peer.dialed.reset();
    peer.link.reset();
    peer.watched = 0;
  }
  connected_ = false;
  sequence_ = 0;
}

void FdExchange::fail(Error error) {
  if (!failure_) failure_ = std::move(error);
}

/// Returns the ranks of processes from `first` on that have not finished: they have not proved the
/// secret or, once connected, not completed the exchange.
std::vector<int> FdExchange::missing(std::size_t first) const {
  std::vector<int> ranks;
  for (const Peer& peer : std::span(peers_).subspan(first)) {
    if (!peer.linked) continue;
    if (peer.link == nullptr || (connected_ && !peer.link->done())) ranks.push_back(peer.rank);
  }
  return ranks;
}

Result<FdSocketName> FdExchange::listen() {
  disconnect();
  FdSocketName name{};
  boot::fill_random(name);
  if (!missing(self_ + 1).empty()) {
    ORIEL_TRY(listener_, listen_at(name));
  }
  return name;
}

Task<Status> FdExchange::dial(EventLoop& loop, std::vector<FdSocketName> names, Deadline deadline) {
  for (std::size_t i = 0; i < self_; ++i) {
    if (!peers_[i].linked) continue;
    const FdSocketName name = names.at(i);
    Status made = co_await connect_one(loop, peers_[i], name, deadline);
    if (!made.ok()) {
      disconnect();
      co_return std::move(made).error().with_context(
          fmt::format("connecting to rank {} for file descriptors", peers_[i].rank));
    }
  }
  co_return Status();
}

Task<Status> FdExchange::connect_one(EventLoop& loop, Peer& peer, FdSocketName name,
                                     Deadline deadline) {
  for (;;) {
    auto socket = connect_to(name);
    if (!socket.ok()) {
      const bool gone = socket.error().native().value == ECONNREFUSED;
      co_return gone ? std::move(socket).error().with_origin(peer.rank) : std::move(socket).error();
    }
    if (socket.value().valid()) {
      const boot::AuthClaim claim{peers_[self_].rank, peer.rank, tag_};
      peer.dialed = std::make_unique<Dialed>(
          Dialed{std::move(socket).value(),
                 boot::AuthInitiator(boot::KeyPurpose::fd_exchange, realm_, key_, claim)});
      co_return Status();
    }
    // The peer's queue is full of foreign connections or of many peers at once.
    const TimePoint now = loop.clock().now();
    if (deadline.expired(now)) {
      co_return Error(ErrorCode::timeout, "its queue of connections stayed full")
          .with_origin(peer.rank);
    }
    ORIEL_CO_CHECK(co_await loop.sleep_until(earlier(deadline, Deadline::at(now + kPause))));
    ORIEL_CO_CHECK(receive_notices());
  }
}

Task<Status> FdExchange::authenticate(EventLoop& loop, Deadline deadline) {
  failure_.reset();
  Status started = begin_authentication(loop.clock());
  if (!started.ok()) fail(std::move(started).error());
  ORIEL_CO_CHECK(co_await turn(loop, "proving the secret over unix sockets", deadline));
  // Closes what remains: foreign connections.
  acceptor_.reset();
  poller_.reset();
  for (Peer& peer : peers_) peer.dialed.reset();
  connected_ = true;
  co_return Status();
}

Status FdExchange::receive_notices() {
  return group_ != nullptr ? group_->receive_notices() : Status();
}

Status FdExchange::watch_notices() {
  const int fd = group_ != nullptr ? group_->notice_fd() : -1;
  if (fd < 0) return {};
  const auto watched = poller_->add(fd, EPOLLIN, [this](std::uint32_t) {
    if (Status received = receive_notices(); !received.ok()) fail(std::move(received).error());
  });
  if (!watched.ok()) return watched.error();
  return receive_notices();  // catches notices read before, for which the descriptor is no longer
                             // readable
}

Status FdExchange::begin_authentication(const Clock& clock) {
  ORIEL_TRY(poller_, boot::Poller::create());
  ORIEL_CHECK(watch_notices());
  for (Peer& peer : peers_) {
    if (peer.dialed == nullptr) continue;
    ORIEL_TRY(peer.dialed->token,
              poller_->add(peer.dialed->socket.get(), EPOLLIN,
                           [this, &peer](std::uint32_t) { advance_dialed(peer); }));
  }
  if (!listener_.valid()) return {};
  const auto lookup = [this](std::uint64_t realm) { return realm == realm_ ? &key_ : nullptr; };
  // Peers never reconnect, so an unauthenticated connection may last as long as authenticate(). If
  // there are too many, honest peers will answer soon, delayed only by their schedulers.
  boot::AcceptorOptions options{.calls = kMessageCalls,
                                .limit = std::chrono::hours(24),
                                .turn = std::chrono::milliseconds(500),
                                .on_failure = [this](Error error) { fail(std::move(error)); }};
  acceptor_ = std::make_unique<boot::Acceptor>(
      *poller_, clock, boot::KeyPurpose::fd_exchange, lookup,
      [this](boot::AuthenticatedConnection authenticated) {
        admit(std::move(authenticated.fd), authenticated.claim);
      },
      std::move(options));
  return acceptor_->listen_on(std::move(listener_));
}

Task<Status> FdExchange::turn(EventLoop& loop, const char* what, Deadline deadline) {
  Status waited;
  while (!failure_) {
    const auto absent = missing();
    if (absent.empty()) co_return Status();
    const bool blocked = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
      return peer.link != nullptr && peer.link->blocked();
    });
    const TimePoint now = loop.clock().now();
    if (deadline.expired(now)) {
      fail(Error(ErrorCode::timeout,
                 fmt::format("no answer in time from rank{} {}", absent.size() > 1 ? "s" : "",
                             fmt::join(absent, ", ")))
               .with_origin(absent.front()));
      break;
    }
    Deadline wake = deadline;
    if (blocked) wake = earlier(wake, Deadline::at(now + kPause));
    if (acceptor_ != nullptr) wake = earlier(wake, acceptor_->next_expiry());
    waited = co_await loop.readable(poller_->fd(), wake);
    if (!waited.ok() && waited.error().code() != ErrorCode::timeout) {
      fail(std::move(waited).error());
      break;
    }
    if (waited.ok()) {
      if (Status polled = poller_->poll_once(); !polled.ok()) fail(std::move(polled).error());
    }
    if (acceptor_ != nullptr) {
      acceptor_->expire();
      notice_absence();
    }
    if (blocked) retry_blocked();
  }
  Error reason = std::move(*failure_).with_context(what);
  failure_.reset();
  disconnect();
  co_return reason;
}

void FdExchange::admit(OwnedFd socket, const boot::AuthClaim& claim) {
  const auto found =
      std::find_if(peers_.begin() + static_cast<std::ptrdiff_t>(self_) + 1, peers_.end(),
                   [&](const Peer& peer) { return peer.linked && peer.rank == claim.from; });
  const bool expected = claim.to == peers_[self_].rank && claim.tag == tag_ &&
                        found != peers_.end() && found->link == nullptr;
  if (expected) found->link = std::make_unique<FdLink>(std::move(socket), found->rank);
}

/// Fails if a peer has closed its connection before it proved the secret. All honest connections
/// were in the queue when authenticate() began. If the queue has been empty since and no connection
/// is unauthenticated, the missing peer has closed its own.
void FdExchange::notice_absence() {
  const std::vector<int> absent = missing(self_ + 1);
  if (absent.empty()) return;
  if (auto shortage = acceptor_->shortage()) return fail(std::move(*shortage));
  if (!acceptor_->queue_was_empty() || acceptor_->pending() > 0) return;
  fail(Error(ErrorCode::remote,
             fmt::format("a connection was closed before it was authenticated; missing: rank{} {}",
                         absent.size() > 1 ? "s" : "", fmt::join(absent, ", ")))
           .with_origin(absent.front()));
}

void FdExchange::advance_dialed(Peer& peer) {
  Dialed& dialed = *peer.dialed;
  const auto fails = [&](Error error) { fail(std::move(error).with_origin(peer.rank)); };
  const auto closed = [&] {
    fails(
        Error(ErrorCode::remote,
              fmt::format("rank {} closed its connection before it was authenticated", peer.rank)));
  };
  boot::AuthChallenge challenge{};
  boot::AuthConfirmation confirmation{};
  const auto into = dialed.responded ? std::span<std::byte>(confirmation) : std::span(challenge);
  const auto got = receive_packet(dialed.socket.get(), into);
  if (!got.ok() && got.error().code() == ErrorCode::system) return fail(Error(got.error()));
  if (!got.ok()) return fails(Error(got.error()));
  if (got.value() == PacketOutcome::blocked) return;
  if (got.value() == PacketOutcome::closed) return closed();
  if (dialed.responded) {
    if (Status authenticated = dialed.initiator.confirm(confirmation); !authenticated.ok()) {
      return fails(std::move(authenticated).error());
    }
    poller_->remove(dialed.token);
    peer.link = std::make_unique<FdLink>(std::move(dialed.socket), peer.rank);
    return;
  }
  auto response = dialed.initiator.respond(challenge);
  if (!response.ok()) return fails(std::move(response).error());
  const auto sent = send_packet(dialed.socket.get(), response.value());
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
  if (Status started = begin_exchange(counts); !started.ok()) fail(std::move(started).error());
  ORIEL_CO_CHECK(co_await turn(loop, "exchanging file descriptors", deadline));
  poller_.reset();
  outgoing_.clear();
  std::vector<std::vector<OwnedFd>> arrived(peers_.size());
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].link != nullptr) arrived[i] = peers_[i].link->take_arrived();
  }
  co_return arrived;
}

Status FdExchange::begin_exchange(const std::vector<std::size_t>& counts) {
  const bool fits = counts.size() == peers_.size() &&
                    (outgoing_.size() == 1 || outgoing_.size() == peers_.size());
  if (!connected_ || !fits) {
    return Error(ErrorCode::internal, "an exchange of file descriptors before connecting");
  }
  std::size_t most = *std::max_element(counts.begin(), counts.end());
  for (const auto& fds : outgoing_) most = std::max(most, fds.size());
  if (most > FdLink::kFdsMost) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("{} file descriptors in one exchange; the limit is {}", most,
                             FdLink::kFdsMost))
        .with_hint("register fewer windows in one group, or windows of fewer allocations");
  }
  ORIEL_TRY(poller_, boot::Poller::create());
  ORIEL_CHECK(watch_notices());
  ++sequence_;
  for (std::size_t i = 0; i < peers_.size() && !failure_; ++i) {
    Peer& peer = peers_[i];
    if (peer.link == nullptr) continue;
    peer.link->begin(sequence_, outgoing_[outgoing_.size() == 1 ? 0 : i], counts[i]);
    ORIEL_TRY(peer.watched, poller_->add(peer.link->fd(), EPOLLIN,
                                         [this, &peer](std::uint32_t) { advance_link(peer); }));
    advance_link(peer);
  }
  return {};
}

void FdExchange::advance_link(Peer& peer) {
  if (Status advanced = peer.link->advance(); !advanced.ok()) {
    return fail(std::move(advanced).error());
  }
  // Stops polling: later messages belong to the next exchange and would keep waking the poller.
  if (peer.link->done()) poller_->remove(peer.watched);
}

void FdExchange::retry_blocked() {
  for (Peer& peer : peers_) {
    if (!failure_ && peer.link != nullptr && peer.link->blocked()) advance_link(peer);
  }
}

}  // namespace oriel::window
