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
    : clock_(other.clock_), wake_(std::move(other.wake_)) {}

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
  waiting_ = true;
  loop_->waits_.push_back(this);
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

void EventLoop::turn() {
  std::vector<pollfd> fds;
  fds.reserve(waits_.size() + 1);
  auto next = TimePoint::max();
  for (const Wait* wait : waits_) {
    fds.push_back(pollfd{wait->fd_, wait->events_, 0});
    next = std::min(next, wait->deadline_.when());
  }
  fds.push_back(pollfd{wake_.get(), POLLIN, 0});  // poll passes over -1

  int timeout_ms = -1;
  if (next != TimePoint::max()) {
    // Rounded up: waking a little early would turn once more for nothing.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - clock_->now()).count();
    timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left, 0, INT_MAX));
  }
  const int polled = sys().poll(fds.data(), fds.size(), timeout_ms);
  // EINTR is no event; any other failure of poll ends every wait with that error.
  std::optional<Error> broken = stop_reason();
  if (polled < 0 && errno != EINTR && !broken) broken = system_error("poll");

  const TimePoint now = clock_->now();
  std::vector<Wait*> ready;
  for (std::size_t i = 0; i + 1 < fds.size(); ++i) {
    Wait* wait = waits_[i];
    if (broken) {
      wait->outcome_ = *broken;
    } else if (polled > 0 && fds[i].revents != 0) {
      wait->outcome_ = {};
    } else if (wait->deadline_.expired(now)) {
      if (wait->fd_ >= 0) wait->outcome_ = Error(ErrorCode::timeout, "the deadline has passed");
    } else {
      continue;
    }
    ready.push_back(wait);
  }
  // Resuming one task may destroy another, and its Wait with it, so each is looked up again.
  for (Wait* wait : ready) {
    const auto it = std::find(waits_.begin(), waits_.end(), wait);
    if (it == waits_.end()) continue;
    waits_.erase(it);
    wait->waiting_ = false;
    wait->handle_.resume();
  }
}

}  // namespace oriel
