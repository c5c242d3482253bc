// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/poller.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/try.hpp"

namespace oriel::boot {
namespace {

constexpr std::size_t kEventsAtOnce = 128;

}  // namespace

Result<Poller> Poller::create() {
  OwnedFd epoll(sys().epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return system_error("epoll_create1");
  return Poller(std::move(epoll));
}

Result<Poller::Token> Poller::add(int fd, std::uint32_t events, Handler handler) {
  const Token token = next_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  int status = sys().epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
  // EEXIST: an earlier removal failed, so the descriptor is still a member without a handler.
  if (status != 0 && errno == EEXIST) {
    status = sys().epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
  }
  if (status != 0) return system_error("epoll_ctl");
  handlers_.emplace(token, Member{fd, events, std::make_shared<Handler>(std::move(handler))});
  return token;
}

Poller::Token Poller::add_foreign(Handler handler) {
  const Token token = next_++;
  handlers_.emplace(token, Member{-1, 0, std::make_shared<Handler>(std::move(handler))});
  return token;
}

Status Poller::watch(Token token, std::uint32_t events) {
  const auto it = handlers_.find(token);
  if (it == handlers_.end() || it->second.events == events) return {};
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  if (sys().epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, it->second.fd, &event) != 0) {
    return system_error("epoll_ctl");
  }
  it->second.events = events;
  return {};
}

void Poller::remove(Token token) {
  const auto it = handlers_.find(token);
  if (it == handlers_.end()) return;
  if (it->second.fd >= 0) {
    epoll_event event{};
    static_cast<void>(sys().epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.fd, &event));
  }
  handlers_.erase(it);
}

Result<Poller::Events> Poller::wait(Deadline deadline, const Clock& clock) const {
  int timeout_ms = -1;
  if (!deadline.is_never()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining(clock.now())).count();
    timeout_ms = static_cast<int>(std::min<std::int64_t>(left, INT_MAX));
  }
  Events events(kEventsAtOnce);
  const int count =
      sys().epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  if (count < 0 && errno != EINTR) return system_error("epoll_wait");
  events.resize(static_cast<std::size_t>(std::max(count, 0)));
  return events;
}

void Poller::dispatch(std::span<const epoll_event> events) {
  for (const epoll_event& event : events) {
    const auto it = handlers_.find(event.data.u64);
    if (it == handlers_.end()) continue;
    const auto handler = it->second.handler;
    (*handler)(event.events);
  }
}

Status Poller::poll_once() {
  std::array<epoll_event, kEventsAtOnce> events;
  const int count =
      sys().epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  if (count < 0 && errno != EINTR) return system_error("epoll_wait");
  dispatch(std::span(events).first(static_cast<std::size_t>(std::max(count, 0))));
  return {};
}

}  // namespace oriel::boot
