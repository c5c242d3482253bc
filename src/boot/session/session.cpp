// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/session.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <new>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/short_memory.hpp"
#include "base/try.hpp"
#include "boot/session/rendezvous.hpp"

namespace oriel::boot {
namespace {

// A rank that has waited this long, or a quarter of its patience, tells the others for whom.
constexpr Duration kStuckAfter = std::chrono::seconds(10);
constexpr Duration kFlushStep = std::chrono::milliseconds(1);

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string seconds(Duration duration) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(duration).count());
}

}  // namespace

Session::Session(const UniqueId& id, int rank, int size)
    : owner_(::getpid()),
      rank_(rank),
      size_(size),
      number_(id.number),
      world_(*this, all_ranks(size), rank) {
  for (std::size_t i = 0; i < keys_.size(); ++i) {
    keys_[i] = Key::derive(id.secret, static_cast<KeyPurpose>(i + 1), id.number);
  }
}

const Key& Session::key(KeyPurpose purpose) const {
  const auto index = static_cast<std::size_t>(purpose) - 1;
  return keys_[std::min(index, keys_.size() - 1)];
}

Task<Status> Session::link_to(std::vector<int> peers) {
  {
    const std::lock_guard lock(mutex_);
    for (const int peer : peers) {
      if (peer >= rank_) continue;
      const auto it = addresses_.find(peer);
      if (it == addresses_.end()) {
        co_return failed(
            Error(ErrorCode::internal, fmt::format("the address of rank {} is not known", peer)));
      }
      // Another host numbers its interfaces differently; ours is the one we listen on.
      SocketAddress address = it->second;
      if (address.is_link_local()) address = address.with_scope(own_address_.scope());
      ORIEL_CO_CHECK(links_->dial(peer, address));
    }
  }
  for (;;) {
    int missing = -1;
    std::string trouble;
    {
      const std::lock_guard lock(mutex_);
      if (auto error = blocked(-1)) co_return std::move(*error);
      const auto it = std::find_if(peers.begin(), peers.end(),
                                   [&](int peer) { return !links_->connected(peer); });
      if (it == peers.end()) co_return Status();
      missing = *it;
      if (auto shortage = links_->shortage()) {
        co_return failed(std::move(*shortage).with_context("accepting the links of other ranks"));
      }
      trouble = links_->dial_trouble(missing);
      if (links_->liveness().has_left(missing)) {
        co_return failed(
            Error(ErrorCode::remote, fmt::format("rank {} has left the communicator", missing))
                .with_origin(missing));
      }
    }
    std::string waiting_for = fmt::format("a connection with rank {}{}", missing,
                                          trouble.empty() ? "" : " (" + trouble + ")");
    ORIEL_CO_CHECK(co_await turn(std::move(waiting_for), missing));
  }
}

// Also the barrier that ends join: from here on every link is up on both sides.
Task<Status> Session::exchange_addresses() {
  ByteWriter mine;
  own_address_.encode(mine);
  Bytes encoded = mine.take();
  ORIEL_CO_TRY(const std::vector<Bytes> all,
               co_await world_.all_gather(Operation::join, std::move(encoded)));
  for (int peer = 0; peer < size_; ++peer) {
    ByteReader reader(all[static_cast<std::size_t>(peer)]);
    auto address = SocketAddress::decode(reader);
    if (!address.ok()) {
      give_up(address.error());
      co_return std::move(address).error().with_context(fmt::format("address of rank {}", peer));
    }
    addresses_[peer] = address.value();
  }
  number_hosts();
  co_return Status();
}

/// Ranks of a host have the address of its interface in common.
void Session::number_hosts() {
  std::map<std::string, std::uint32_t> numbers;
  std::vector<std::uint32_t> host_of;
  for (int rank = 0; rank < size_; ++rank) {
    const auto next = static_cast<std::uint32_t>(numbers.size());
    const std::string host = addresses_[rank].with_port(0).to_string();
    host_of.push_back(numbers.try_emplace(host, next).first->second);
  }
  const std::lock_guard lock(mutex_);
  links_->set_hosts(std::move(host_of));
}

bool Session::can_link(const std::vector<int>& peers) const {
  const std::lock_guard lock(mutex_);
  return listening_ || std::all_of(peers.begin(), peers.end(),
                                   [this](int peer) { return links_->connected(peer); });
}

Task<Result<Group>> Session::subgroup(std::vector<int> world_ranks) {
  const auto self = std::find(world_ranks.begin(), world_ranks.end(), rank_);
  const std::set<int> distinct(world_ranks.begin(), world_ranks.end());
  const bool valid = self != world_ranks.end() && distinct.size() == world_ranks.size() &&
                     *distinct.begin() >= 0 && *distinct.rbegin() < size_;
  if (!valid) {
    co_return Error(ErrorCode::internal,
                    fmt::format("rank {} cannot form a group of ranks [{}] of {}", rank_,
                                fmt::join(world_ranks, ", "), size_));
  }
  const auto index = static_cast<int>(self - world_ranks.begin());
  std::vector<int> peers = link_neighbours(index, static_cast<int>(world_ranks.size()));
  for (int& peer : peers) peer = world_ranks[static_cast<std::size_t>(peer)];
  if (!can_link(peers)) {
    co_return Error(ErrorCode::internal, "the session has stopped listening for new links");
  }
  if (!peers.empty()) {
    Status linked = co_await link_to(std::move(peers));
    if (!linked.ok()) co_return std::move(linked).error().with_context("connecting a subgroup");
  }
  co_return Group(*this, std::move(world_ranks), index);
}

Result<Session::Activity> Session::activate(EventLoop& loop, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (loop_ != nullptr) {
    return Error(ErrorCode::invalid_usage,
                 "another thread is in a collective call of the same communicator")
        .with_origin(rank_);
  }
  if (links_ && links_->liveness().failure()) return *links_->liveness().failure();
  if (solo_failure_) return *solo_failure_;
  loop_ = &loop;
  deadline_ = deadline;
  begun_ = progress_at_ = loop.clock().now();
  stuck_after_ = std::min(kStuckAfter, deadline.remaining(begun_) / 4);
  arm_idle(false);
  return Activity(*this);
}

void Session::end_activity() {
  const std::lock_guard lock(mutex_);
  try {
    if (links_) {
      tell_stuck(-1);
      links_->spread_news();  // nobody may turn the links for long
    }
  } catch (const std::bad_alloc&) {  // whoever turns them next spreads what there is
  }
  loop_ = nullptr;
  // Armed again, a watcher learns at once of what came while it was not looking.
  if (idle_epoll_ >= 0) wake();
  arm_idle(true);
}

Session::Activity::~Activity() {
  if (session_ != nullptr) session_->end_activity();
}

Session::Activity& Session::Activity::operator=(Activity&& other) noexcept {
  if (this != &other) {
    if (session_ != nullptr) session_->end_activity();
    session_ = std::exchange(other.session_, nullptr);
  }
  return *this;
}

// Ends when the kernel has the whole message, for nobody may turn the links afterwards. Two ranks
// that send to each other cannot block each other: whoever waits here also reads.
Task<Status> Session::send(int peer, Bytes message) {
  {
    const std::lock_guard lock(mutex_);
    if (auto error = blocked(peer)) co_return std::move(*error);
    Status queued = links_->send(peer, message);
    if (!queued.ok()) co_return failed(std::move(queued).error());
  }
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (links_->queued_bytes(peer) == 0) {
        progressed();
        co_return Status();
      }
      if (auto error = blocked(peer)) co_return std::move(*error);
    }
    std::string waiting_for = despite_short_memory(
        [&] { return fmt::format("rank {} to take {} bytes", peer, message.size()); });
    ORIEL_CO_CHECK(co_await turn(std::move(waiting_for), peer));
  }
}

Task<Result<Bytes>> Session::receive(int peer) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      std::optional<Error> error = blocked(peer);
      // What a rank said before it died still counts, for it may say why.
      const bool has_died = links_ && links_->liveness().has_died(peer);
      if (error && !has_died) co_return std::move(*error);
      if (auto message = links_->pop(peer)) {
        progressed();
        co_return std::move(*message);
      }
      if (error) co_return std::move(*error);
      // Others may tell of its departure before its last message has come.
      if (links_->ended(peer)) {
        co_return failed(
            Error(ErrorCode::remote, fmt::format("rank {} has left the communicator", peer))
                .with_origin(peer)
                .with_hint("destroy a communicator only after its last collective call"));
      }
    }
    std::string waiting_for =
        despite_short_memory([peer] { return fmt::format("a message from rank {}", peer); });
    ORIEL_CO_CHECK(co_await turn(std::move(waiting_for), peer));
  }
}

std::optional<Error> Session::blocked(int peer) const {
  if (!links_) return Error(ErrorCode::internal, "a session of one rank has no peers");
  if (links_->liveness().failure()) return *links_->liveness().failure();
  if (loop_ == nullptr) return Error(ErrorCode::internal, "no activity is alive in this session");
  if (peer >= 0 && !links_->connected(peer)) {
    return Error(ErrorCode::internal, fmt::format("rank {} has no link to rank {}", rank_, peer));
  }
  return std::nullopt;
}

Task<Status> Session::turn(std::string waiting_for, int culprit) {
  Deadline until = Deadline::never();
  int fd = -1;
  {
    const std::lock_guard lock(mutex_);
    until = earlier(deadline_, links_->next_timer());
    if (stuck_on_ != culprit) {
      const TimePoint stuck_at = progress_at_ + stuck_after_;
      if (loop_->clock().now() >= stuck_at) {
        tell_stuck(culprit);
      } else {
        until = earlier(until, Deadline::at(stuck_at));
      }
    }
    fd = links_->poll_fd();
  }
  Status ready = co_await loop_->readable(fd, until);
  const std::lock_guard lock(mutex_);
  ORIEL_CO_CHECK(after_wait(std::move(ready), waiting_for, culprit));
  Status pumped = links_->pump();
  if (!pumped.ok()) co_return failed(std::move(pumped).error());
  co_return Status();
}

// A wait that has timed out is no failure as long as only a timer of the links was due.
Status Session::after_wait(Status waited, const std::string& waiting_for, int culprit) {
  if (waited.ok()) return {};
  const TimePoint now = loop_->clock().now();
  if (waited.error().code() != ErrorCode::timeout) return failed(std::move(waited).error());
  if (!deadline_.expired(now)) return {};
  return failed(too_late(waiting_for, culprit, now));
}

Error Session::too_late(const std::string& waiting_for, int culprit, TimePoint now) const {
  std::string text = fmt::format("rank {} has waited for {} in vain, {} after the call", rank_,
                                 waiting_for, seconds(now - begun_));
  // The rank waited for may itself wait for another. Of itself this one has told only if its wait
  // has lasted, so the chain begins behind it.
  const int end = culprit >= 0 ? links_->liveness().end_of_chain(culprit) : -1;
  const bool has_lasted = end != culprit || stuck_on_ == culprit;
  if (end >= 0 && end != rank_ && has_lasted) {
    text += fmt::format("; rank {} waits for nobody: it is stopped or has not made the call", end);
    culprit = end;
  }
  Error late(ErrorCode::timeout, std::move(text));
  if (culprit >= 0) late = std::move(late).with_origin(culprit);
  return std::move(late).with_hint(
      "see that every rank runs and makes the same calls, or raise ORIEL_TIMEOUT");
}

void Session::progressed() {
  progress_at_ = loop_->clock().now();
  tell_stuck(-1);
}

void Session::tell_stuck(int on) {
  if (on == stuck_on_) return;
  try {
    links_->liveness().stuck(on);
    stuck_on_ = on;
    links_->spread_news();
  } catch (const std::bad_alloc&) {  // an error of others may name another rank
  }
}

Error Session::failed(Error error) {
  Error told = std::move(error).with_scope(Scope::communicator).with_origin(rank_);
  if (links_) {
    despite_short_memory([&] { links_->liveness().aborted(rank_, told); });
    links_->spread_news();
  }
  return told;
}

void Session::give_up(const Error& reason) {
  abort(reason);
}

int Session::news_fd() const {
  const std::lock_guard lock(mutex_);
  return links_ ? links_->poll_fd() : -1;
}

Status Session::take_news() {
  const std::lock_guard lock(mutex_);
  if (!links_) return {};
  if (Status pumped = links_->pump(); !pumped.ok()) return failed(std::move(pumped).error());
  if (const auto& failure = links_->liveness().failure()) return *failure;
  return {};
}

void Session::stop_listening() {
  const std::lock_guard lock(mutex_);
  listening_ = false;
  if (links_) links_->stop_listening();
}

void Session::leave() {
  const std::lock_guard lock(mutex_);
  if (!links_) return;
  try {
    links_->say_left();
  } catch (const std::bad_alloc&) {  // the end of the session says it again
  }
}

void Session::abort(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!links_) {
    if (!solo_failure_) solo_failure_ = Error(reason).with_origin(rank_);
    return;
  }
  static_cast<void>(failed(despite_short_memory([&] { return reason; })));
  wake();
}

void Session::report_death(int rank, const std::string& how) {
  const std::lock_guard lock(mutex_);
  if (!links_) return;
  despite_short_memory([&] { links_->liveness().died(rank, how); });
  links_->spread_news();
  wake();
}

Status Session::send_note(int to, ByteView text) {
  const std::lock_guard lock(mutex_);
  if (!links_) return Error(ErrorCode::invalid_usage, "a note of the only rank");
  return links_->send_note(to, text);
}

std::optional<Bytes> Session::take_note(int from) {
  const std::lock_guard lock(mutex_);
  return links_ ? links_->take_note(from) : std::nullopt;
}

void Session::tell_waiting(int on) {
  const std::lock_guard lock(mutex_);
  if (!links_ || loop_ != nullptr || on == stuck_on_) return;
  tell_stuck(on);
  wake();
}

int Session::end_of_wait(int on) const {
  const std::lock_guard lock(mutex_);
  return links_ ? links_->liveness().end_of_chain(on) : on;
}

std::optional<Error> Session::failure() const {
  const std::lock_guard lock(mutex_);
  return links_ ? links_->liveness().failure() : solo_failure_;
}

bool Session::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return links_ && rank >= 0 && rank < size_ && links_->liveness().has_left(rank);
}

void Session::wake() {
  if (wake_) raise_event(wake_);
}

void Session::arm_idle(bool on) {
  if (idle_epoll_ < 0 || !links_) return;
  epoll_event event{};
  event.events = on ? static_cast<std::uint32_t>(EPOLLIN) | EPOLLONESHOT : 0U;
  event.data.u64 = idle_token_;
  static_cast<void>(sys().epoll_ctl(idle_epoll_, EPOLL_CTL_MOD, links_->poll_fd(), &event));
}

Status Session::attach_idle(int epoll_fd, std::uint64_t token) {
  const std::lock_guard lock(mutex_);
  if (!links_) return {};
  if (idle_epoll_ >= 0) return Error(ErrorCode::internal, "the session is being watched already");
  epoll_event event{};
  event.events = loop_ == nullptr ? static_cast<std::uint32_t>(EPOLLIN) | EPOLLONESHOT : 0U;
  event.data.u64 = token;
  if (sys().epoll_ctl(epoll_fd, EPOLL_CTL_ADD, links_->poll_fd(), &event) != 0) {
    return system_error("epoll_ctl");
  }
  idle_epoll_ = epoll_fd;
  idle_token_ = token;
  wake();  // for the events that there are already
  return {};
}

void Session::detach_idle() {
  const std::lock_guard lock(mutex_);
  if (idle_epoll_ < 0) return;
  epoll_event event{};
  static_cast<void>(sys().epoll_ctl(idle_epoll_, EPOLL_CTL_DEL, links_->poll_fd(), &event));
  idle_epoll_ = -1;
}

std::vector<PeerEvent> Session::pump_idle() {
  const std::lock_guard lock(mutex_);
  if (!links_) return {};
  if (loop_ == nullptr) {
    const Status pumped = links_->pump();
    if (!pumped.ok()) static_cast<void>(failed(pumped.error()));
    arm_idle(true);
  }
  return links_->liveness().take_events();
}

Deadline Session::idle_timer() const {
  const std::lock_guard lock(mutex_);
  return links_ && loop_ == nullptr ? links_->next_timer() : Deadline::never();
}

Session::~Session() {
  if (!links_) return;
  if (owner_ != ::getpid()) {
    links_->poller().disown();
    return;
  }
  detach_idle();
  try {
    take_leave();
  } catch (const std::bad_alloc&) {  // the connections end all the same
  }
}

void Session::take_leave() {
  const std::lock_guard lock(mutex_);
  // First, so that nobody is told of what may fail below.
  links_->say_left();
  // What has arrived is read: unread bytes would make the kernel reset the connection, and cut off
  // our last words.
  static_cast<void>(links_->pump());
  // A peer's word that comes after close() makes the kernel drop what it has not sent yet.
  const Clock& clock = SteadyClock::instance();
  const Deadline deadline = Deadline::after(kFlushTime, clock);
  while (links_->unsent() && !deadline.expired(clock.now())) {
    const auto events = links_->poller().wait(Deadline::after(kFlushStep, clock), clock);
    if (!events.ok()) return;
    links_->poller().dispatch(events.value());
  }
}

}  // namespace oriel::boot
