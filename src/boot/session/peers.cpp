// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/session/peers.hpp"

#include <new>
#include <utility>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/try.hpp"

namespace oriel::boot {
namespace {

constexpr Duration kFlushStep = std::chrono::milliseconds(1);
constexpr std::uint32_t kIdleEvents = static_cast<std::uint32_t>(EPOLLIN) | EPOLLONESHOT;

}  // namespace

Peers::Peers(int rank) : owner_(::getpid()), rank_(rank) {}

Peers::~Peers() {
  if (!links_) return;
  if (owner_ != ::getpid()) {
    links_->poller().disown();
    return;
  }
  detach_idle();
  try {
    take_leave();
  } catch (const std::bad_alloc&) {  // the connections close anyway
  }
}

void Peers::take_leave() {
  const std::lock_guard lock(mutex_);
  // Leaves first, so that a failure below is not sent to anyone.
  links_->send_departure();
  // Reads arrived messages: unread bytes would make the kernel reset the connection and discard
  // this rank's last frames.
  static_cast<void>(links_->pump());
  // Waits until all is sent, for kFlushTime at most. A frame that arrives after close() makes the
  // kernel discard unsent data.
  const Clock& clock = SteadyClock::instance();
  const Deadline deadline = Deadline::after(kFlushTime, clock);
  while (links_->unsent() && !deadline.expired(clock.now())) {
    const auto events = links_->poller().wait(Deadline::after(kFlushStep, clock), clock);
    if (!events.ok()) return;
    links_->poller().dispatch(events.value());
  }
}

Status Peers::open(LinkIdentity identity, const Clock& clock) {
  ORIEL_TRY(links_, Links::create(std::move(identity), clock));
  wake_ = OwnedFd(sys().eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_) return system_error("eventfd");
  const int wake_fd = wake_.get();
  const auto watched = links_->poller().add(wake_fd, EPOLLIN, [wake_fd](std::uint32_t) {
    eventfd_t count = 0;
    static_cast<void>(sys().eventfd_read(wake_fd, &count));
  });
  return watched.ok() ? Status() : watched.error();
}

void Peers::leave() {
  const std::lock_guard lock(mutex_);
  if (links_) links_->send_departure();
}

void Peers::abort(const Error& reason) {
  const std::lock_guard lock(mutex_);
  static_cast<void>(fail(reason));
  if (wake_) raise_event(wake_);
}

Error Peers::fail(Error error) {
  Error reported = std::move(error).with_scope(Scope::communicator).with_origin(rank_);
  if (links_) {
    links_->liveness().aborted(rank_, reported);
    links_->send_notices();
  } else if (!solo_failure_) {
    solo_failure_ = reported;
  }
  return reported;
}

void Peers::report_death(int rank, const std::string& how) {
  const std::lock_guard lock(mutex_);
  if (!links_) return;
  links_->liveness().died(rank, how);
  links_->send_notices();
  raise_event(wake_);
}

Status Peers::send_note(int to, ByteView text, NoteTopic topic) {
  const std::lock_guard lock(mutex_);
  if (!links_) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("a note of {} bytes to rank {}, from the communicator's only rank",
                             text.size(), to))
        .with_hint("send notes in communicators of two or more ranks only");
  }
  return links_->send_note(to, text, topic);
}

std::optional<Note> Peers::take_note(NoteTopic topic, int from) {
  const std::lock_guard lock(mutex_);
  return links_ ? links_->notes().take(topic, from) : std::nullopt;
}

void Peers::send_waiting(int on) {
  const std::lock_guard lock(mutex_);
  if (!links_ || busy_ || on == waiting_on_) return;
  send_waiting_locked(on);
  raise_event(wake_);
}

void Peers::send_waiting_locked(int on) {
  if (on == waiting_on_) return;
  waiting_on_ = on;
  links_->liveness().stuck(on);
  links_->send_notices();
}

ChainEnd Peers::end_of_wait(int on) const {
  const std::lock_guard lock(mutex_);
  return links_ ? links_->liveness().end_of_chain(on) : ChainEnd{on, false};
}

std::optional<Error> Peers::failure() const {
  const std::lock_guard lock(mutex_);
  return links_ ? links_->liveness().failure() : solo_failure_;
}

bool Peers::has_left(int rank) const {
  const std::lock_guard lock(mutex_);
  return links_ && links_->liveness().has_left(rank);
}

void Peers::set_busy(bool busy) {
  busy_ = busy;
  // Wakes the re-armed watcher for events that arrived while it was disarmed.
  if (!busy && idle_epoll_ >= 0) raise_event(wake_);
  arm_idle(!busy);
}

void Peers::arm_idle(bool on) {
  if (idle_epoll_ < 0) return;
  epoll_event event{};
  event.events = on ? kIdleEvents : 0U;
  event.data.u64 = idle_token_;
  static_cast<void>(sys().epoll_ctl(idle_epoll_, EPOLL_CTL_MOD, links_->poller().fd(), &event));
}

Status Peers::attach_idle(int epoll_fd, std::uint64_t token) {
  const std::lock_guard lock(mutex_);
  if (!links_) return {};
  if (idle_epoll_ >= 0) return Error(ErrorCode::internal, "the session is being watched already");
  epoll_event event{};
  event.events = busy_ ? 0U : kIdleEvents;
  event.data.u64 = token;
  if (sys().epoll_ctl(epoll_fd, EPOLL_CTL_ADD, links_->poller().fd(), &event) != 0) {
    return system_error("epoll_ctl");
  }
  idle_epoll_ = epoll_fd;
  idle_token_ = token;
  raise_event(wake_);  // for events that are already pending
  return {};
}

void Peers::detach_idle() {
  const std::lock_guard lock(mutex_);
  if (idle_epoll_ < 0) return;
  epoll_event event{};
  static_cast<void>(sys().epoll_ctl(idle_epoll_, EPOLL_CTL_DEL, links_->poller().fd(), &event));
  idle_epoll_ = -1;
}

std::vector<PeerEvent> Peers::pump_idle() {
  const std::lock_guard lock(mutex_);
  if (!links_) return {};
  if (!busy_) {
    const Status pumped = links_->pump();
    if (!pumped.ok()) static_cast<void>(fail(pumped.error()));
    arm_idle(true);
  }
  return links_->liveness().take_events();
}

Deadline Peers::idle_timer() const {
  const std::lock_guard lock(mutex_);
  return links_ && !busy_ ? links_->next_timer() : Deadline::never();
}

}  // namespace oriel::boot
