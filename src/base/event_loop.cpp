// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/event_loop.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>

#include <sys/eventfd.h>

namespace oriel {

Result<EventLoop> EventLoop::create(const Clock& clock) {
  OwnedFd wake(sys().eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return system_error("eventfd");
  return EventLoop(clock, std::move(wake));
}

EventLoop EventLoop::without_wake(const Clock& clock) {
  return EventLoop(clock, OwnedFd());
}

EventLoop::EventLoop(EventLoop&& other) noexcept
    : clock_(other.clock_),
      wake_(std::move(other.wake_)),
      waits_(std::move(other.waits_)),
      fds_(std::move(other.fds_)),
      ready_(std::move(other.ready_)) {}

EventLoop::~EventLoop() = default;

EventLoop::Wait EventLoop::readable(int fd, Deadline deadline) {
  return Wait(*this, fd, POLLIN, deadline);
}

EventLoop::Wait EventLoop::writable(int fd, Deadline deadline) {
  return Wait(*this, fd, POLLOUT, deadline);
}

EventLoop::Wait EventLoop::sleep_until(Deadline when) {
  return Wait(*this, -1, 0, when);
}

void EventLoop::Wait::await_suspend(std::coroutine_handle<> handle) {
  handle_ = handle;
  loop_->waits_.push_back(this);
  waiting_ = true;
}

Status EventLoop::Wait::await_resume() {
  switch (outcome_) {
    case Outcome::ready:
      break;
    case Outcome::expired:
      return Error(ErrorCode::timeout, "the deadline has passed");
    case Outcome::stopped:
      return *loop_->stop_reason();
    case Outcome::broken:
      return system_error("poll", errno_);
  }
  return {};
}

EventLoop::Wait::~Wait() {
  if (waiting_) std::erase(loop_->waits_, this);
}

void EventLoop::stop(Error reason) {
  {
    const std::lock_guard lock(stop_mutex_);
    if (!stop_reason_) stop_reason_ = std::move(reason);
  }
  raise_event(wake_);
}

std::optional<Error> EventLoop::stop_reason() {
  const std::lock_guard lock(stop_mutex_);
  return stop_reason_;
}

bool EventLoop::stopped() {
  const std::lock_guard lock(stop_mutex_);
  return stop_reason_.has_value();
}

void EventLoop::turn() {
  fds_.clear();
  auto next = TimePoint::max();
  for (const Wait* wait : waits_) {
    fds_.push_back(pollfd{wait->fd_, wait->events_, 0});
    next = std::min(next, wait->deadline_.when());
  }
  fds_.push_back(pollfd{wake_.get(), POLLIN, 0});  // poll() ignores -1

  int timeout_ms = -1;
  if (next != TimePoint::max()) {
    // Rounded up: an early wake-up would cause one more turn.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - clock_->now()).count();
    timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
  }
  const int polled = sys().poll(fds_.data(), fds_.size(), timeout_ms);
  // EINTR is no event; any other failure of poll() ends every wait with that error.
  const int broken = polled < 0 && errno != EINTR ? errno : 0;
  const bool is_stopped = stopped();

  const TimePoint now = clock_->now();
  ready_.clear();
  for (std::size_t i = 0; i < waits_.size(); ++i) {
    Wait* wait = waits_[i];
    if (is_stopped) {
      wait->outcome_ = Wait::Outcome::stopped;
    } else if (broken != 0) {
      wait->outcome_ = Wait::Outcome::broken;
      wait->errno_ = broken;
    } else if (polled > 0 && fds_[i].revents != 0) {
      wait->outcome_ = Wait::Outcome::ready;
    } else if (wait->deadline_.expired(now)) {
      wait->outcome_ = wait->fd_ >= 0 ? Wait::Outcome::expired : Wait::Outcome::ready;
    } else {
      continue;
    }
    ready_.push_back(wait);
  }
  // A resumed task may destroy another task with its Wait, or start a wait, which may move
  // `waits_`. So each Wait is looked up again.
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    Wait* const wait = ready_[i];
    const auto it = std::find(waits_.begin(), waits_.end(), wait);
    if (it == waits_.end()) continue;
    waits_.erase(it);
    wait->waiting_ = false;
    wait->handle_.resume();
  }
}

}  // namespace oriel
