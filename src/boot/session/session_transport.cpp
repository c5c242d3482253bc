// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/session_transport.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::boot {
namespace {

// Wait after which a rank announces for whom it waits: this, or a quarter of its timeout if
// shorter.
constexpr Duration kStuckAfter = std::chrono::seconds(10);

std::string seconds(Duration duration) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(duration).count());
}

Error has_left_error(int peer) {
  return Error(ErrorCode::remote, fmt::format("rank {} has left the communicator", peer))
      .with_origin(peer);
}

}  // namespace

Status SessionTransport::begin(EventLoop& loop, Deadline deadline) {
  if (auto failure = peers_->failure()) return std::move(*failure);
  const auto lock = peers_->lock();
  if (peers_->is_busy()) {
    return Error(ErrorCode::invalid_usage,
                 "another thread is in a collective call of the same communicator")
        .with_origin(rank_)
        .with_hint("let one thread at a time call collectives of a communicator");
  }
  loop_ = &loop;
  deadline_ = deadline;
  started_ = progress_at_ = loop.clock().now();
  stuck_after_ = std::min(kStuckAfter, deadline.remaining(started_) / 4);
  peers_->set_busy(true);
  return {};
}

void SessionTransport::end() {
  const auto lock = peers_->lock();
  peers_->set_busy(false);
  loop_ = nullptr;
}

// Completes once the kernel has the whole message, since the links may not be pumped afterwards.
// Also completes if the link has closed and dropped the message. Two ranks that send to each other
// do not block: a sender also reads while it waits.
Task<Status> SessionTransport::send(int peer, Bytes message) {
  {
    const auto lock = peers_->lock();
    if (auto error = blocked(peer)) co_return std::move(*error);
    Status queued = peers_->links()->send(peer, message);
    if (!queued.ok()) co_return peers_->fail(std::move(queued).error());
  }
  for (;;) {
    {
      const auto lock = peers_->lock();
      const Link* const link = peers_->links()->find(peer);
      if (link->queued_bytes() == 0) {
        progressed();
        co_return Status();
      }
      if (auto error = blocked(peer)) co_return std::move(*error);
    }
    std::string waiting_for = fmt::format("rank {} to take {} bytes", peer, message.size());
    ORIEL_CO_CHECK(co_await turn(std::move(waiting_for), peer));
  }
}

Task<Result<Bytes>> SessionTransport::receive(int peer) {
  for (;;) {
    {
      const auto lock = peers_->lock();
      std::optional<Error> error = blocked(peer);
      Links* const links = peers_->links();
      // Messages that a rank sent before its death still count: they may contain the reason.
      const bool has_died = links != nullptr && links->liveness().has_died(peer);
      if (error && !has_died) co_return std::move(*error);
      Link* const link = links->find(peer);
      if (link == nullptr) co_return std::move(*error);
      if (auto message = link->pop()) {
        progressed();
        co_return std::move(*message);
      }
      if (error) co_return std::move(*error);
      // Another rank's notice of the departure may arrive before the peer's last message.
      if (link->ended()) {
        co_return peers_->fail(
            has_left_error(peer).with_hint("finalize or destroy a communicator only after its last "
                                           "collective call"));
      }
    }
    std::string waiting_for = fmt::format("a message from rank {}", peer);
    ORIEL_CO_CHECK(co_await turn(std::move(waiting_for), peer));
  }
}

int SessionTransport::notice_fd() const {
  return peers_->links() != nullptr ? peers_->links()->poller().fd() : -1;
}

Status SessionTransport::receive_notices() {
  const auto lock = peers_->lock();
  Links* const links = peers_->links();
  if (links == nullptr) return {};
  if (Status pumped = links->pump(); !pumped.ok()) return peers_->fail(std::move(pumped).error());
  if (const auto& failure = links->liveness().failure()) return *failure;
  return {};
}

Task<Status> SessionTransport::link_to(std::vector<int> peers,
                                       const std::map<int, SocketAddress>& addresses) {
  ORIEL_CO_CHECK(dial(peers, addresses));
  for (;;) {
    std::string last_error;
    ORIEL_CO_TRY(const int missing, find_missing(peers, last_error));
    if (missing < 0) {
      const auto lock = peers_->lock();
      progressed();
      co_return Status();
    }
    std::string waiting_for = fmt::format("a connection with rank {}{}", missing,
                                          last_error.empty() ? "" : " (" + last_error + ")");
    ORIEL_CO_CHECK(co_await turn(std::move(waiting_for), missing));
  }
}

Status SessionTransport::dial(const std::vector<int>& peers,
                              const std::map<int, SocketAddress>& addresses) {
  const auto lock = peers_->lock();
  for (const int peer : peers) {
    if (peer >= rank_) continue;
    const auto it = addresses.find(peer);
    if (it == addresses.end()) {
      return peers_->fail(
          Error(ErrorCode::internal, fmt::format("the address of rank {} is not known", peer)));
    }
    ORIEL_CHECK(peers_->links()->dial(peer, it->second));
  }
  return {};
}

Result<int> SessionTransport::find_missing(const std::vector<int>& peers, std::string& last_error) {
  const auto lock = peers_->lock();
  if (auto error = blocked(-1)) return std::move(*error);
  Links& links = *peers_->links();
  const auto it = std::find_if(peers.begin(), peers.end(),
                               [&](int peer) { return links.find(peer) == nullptr; });
  if (it == peers.end()) return -1;
  if (auto shortage = links.acceptor().shortage()) {
    return peers_->fail(std::move(*shortage).with_context("accepting the links of other ranks"));
  }
  last_error = links.dials().last_error(*it);
  if (links.liveness().has_left(*it)) return peers_->fail(has_left_error(*it));
  return *it;
}

std::optional<Error> SessionTransport::blocked(int peer) const {
  Links* const links = peers_->links();
  if (links == nullptr) return Error(ErrorCode::internal, "a session of one rank has no peers");
  if (links->liveness().failure()) return *links->liveness().failure();
  if (loop_ == nullptr) return Error(ErrorCode::internal, "no activity is alive in this session");
  if (peer >= 0 && links->find(peer) == nullptr) {
    return Error(ErrorCode::internal, fmt::format("rank {} has no link to rank {}", rank_, peer));
  }
  return std::nullopt;
}

Task<Status> SessionTransport::turn(std::string waiting_for, int awaited_rank) {
  Deadline until = Deadline::never();
  {
    const auto lock = peers_->lock();
    until = earlier(deadline_, peers_->links()->next_timer());
    if (peers_->waiting_on() != awaited_rank) {
      const TimePoint stuck_at = progress_at_ + stuck_after_;
      if (loop_->clock().now() >= stuck_at) {
        peers_->send_waiting_locked(awaited_rank);
      } else {
        until = earlier(until, Deadline::at(stuck_at));
      }
    }
  }
  Status ready = co_await loop_->readable(notice_fd(), until);
  const auto lock = peers_->lock();
  ORIEL_CO_CHECK(after_wait(std::move(ready), waiting_for, awaited_rank));
  Status pumped = peers_->links()->pump();
  if (!pumped.ok()) co_return peers_->fail(std::move(pumped).error());
  co_return Status();
}

Status SessionTransport::after_wait(Status waited, const std::string& waiting_for,
                                    int awaited_rank) {
  if (waited.ok()) return {};
  const TimePoint now = loop_->clock().now();
  if (waited.error().code() != ErrorCode::timeout) return peers_->fail(std::move(waited).error());
  if (!deadline_.expired(now)) return {};
  return peers_->fail(too_late(waiting_for, awaited_rank, now));
}

Error SessionTransport::too_late(const std::string& waiting_for, int awaited_rank,
                                 TimePoint now) const {
  // The rank waited for may itself wait for another, so the last rank of the chain is blamed. The
  // chain starts behind this rank, which announces only long waits.
  const auto [end, waits_for_itself] =
      awaited_rank >= 0 ? peers_->links()->liveness().end_of_chain(awaited_rank) : ChainEnd();
  if (waits_for_itself) {
    return Error(ErrorCode::timeout,
                 fmt::format("rank {} timed out waiting for {}, {} after the call; rank {} waits "
                             "for its own kernel",
                             rank_, waiting_for, seconds(now - started_), end))
        .with_origin(end)
        .with_hint("end other kernels that fill that rank's GPU, or raise ORIEL_TIMEOUT");
  }
  std::string text = fmt::format("rank {} timed out waiting for {}, {} after the call", rank_,
                                 waiting_for, seconds(now - started_));
  const bool has_lasted = end != awaited_rank || peers_->waiting_on() == awaited_rank;
  if (end >= 0 && end != rank_ && has_lasted) {
    text += fmt::format("; rank {} waits for nobody: it is stopped or has not called", end);
    awaited_rank = end;
  }
  Error late(ErrorCode::timeout, std::move(text));
  if (awaited_rank >= 0) late = std::move(late).with_origin(awaited_rank);
  return std::move(late).with_hint(
      "see that every rank runs and makes the same calls, or raise ORIEL_TIMEOUT");
}

void SessionTransport::progressed() {
  progress_at_ = loop_->clock().now();
  peers_->send_waiting_locked(-1);
}

}  // namespace oriel::boot
