// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <coroutine>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include <poll.h>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "base/task.hpp"

namespace oriel {

/// Runs the tasks of one thread over file descriptors. A waiting task is resumed when poll(2)
/// reports its descriptor, its deadline passes, or the loop is stopped. Set-up tasks that a
/// GroupEnd runs in its own thread share one loop, so their communicators advance together.
///
/// One thread runs the loop; only stop() may be called from others. If a task is still suspended,
/// its owner must destroy it before the loop.
class EventLoop {
 public:
  static Result<EventLoop> create(const Clock& clock = SteadyClock::instance());
  /// Creates a loop without a descriptor of its own. stop() then ends its waits only after another
  /// event.
  static EventLoop without_wake(const Clock& clock = SteadyClock::instance());

  EventLoop(EventLoop&& other) noexcept;
  EventLoop& operator=(EventLoop&&) = delete;
  ~EventLoop();

  const Clock& clock() const { return *clock_; }

  class Wait;
  /// Suspends until `fd` is readable or has hung up. Returns a timeout error once `deadline` has
  /// passed.
  Wait readable(int fd, Deadline deadline);
  /// Suspends until `fd` is writable; see readable().
  Wait writable(int fd, Deadline deadline);
  /// Suspends until `when`; fails only if the loop is stopped or poll(2) fails.
  Wait sleep_until(Deadline when);

  /// Starts `task` and runs the loop until it has ended. Other spawned tasks advance meanwhile.
  template <typename T>
  T run(Task<T> task) {
    task.start();
    while (!task.done()) turn();
    return task.take();
  }

  /// Runs all tasks concurrently to their end. Returns the results in the order of the tasks.
  template <typename T>
  std::vector<T> run_all(std::vector<Task<T>> tasks) {
    std::vector<T> results;
    results.reserve(tasks.size());
    for (auto& task : tasks) task.start();
    for (auto& task : tasks) {
      while (!task.done()) turn();
    }
    for (auto& task : tasks) results.push_back(task.take());
    return results;
  }

  /// Ends every present and future wait of this loop with `reason`. Any thread; the first reason
  /// counts.
  void stop(Error reason);

 private:
  EventLoop(const Clock& clock, OwnedFd wake) : clock_(&clock), wake_(std::move(wake)) {}
  void turn();
  bool stopped();
  std::optional<Error> stop_reason();

  const Clock* clock_;
  OwnedFd wake_;
  std::vector<Wait*> waits_;
  std::vector<pollfd> fds_;   // used by turn()
  std::vector<Wait*> ready_;  // used by turn()
  std::mutex stop_mutex_;
  std::optional<Error> stop_reason_;
};

/// Awaitable of readable(), writable() and sleep_until(); co_await it at once.
class [[nodiscard]] EventLoop::Wait {
 public:
  Wait(EventLoop& loop, int fd, short events, Deadline deadline)
      : loop_(&loop), fd_(fd), events_(events), deadline_(deadline) {}
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait();  // removes a coroutine that is destroyed while it waits from the loop

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle);
  Status await_resume();

 private:
  friend class EventLoop;
  EventLoop* loop_;
  int fd_;
  short events_;
  Deadline deadline_;
  enum class Outcome { ready, expired, stopped, broken };

  std::coroutine_handle<> handle_;
  Outcome outcome_ = Outcome::ready;
  int errno_ = 0;  // error of poll() if `outcome_` is broken
  bool waiting_ = false;
};

}  // namespace oriel
