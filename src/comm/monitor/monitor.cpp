// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/monitor/monitor.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <new>
#include <utility>

#include <unistd.h>

#include "base/no_memory.hpp"
#include "base/try.hpp"
#include "comm/monitor/monitor_thread.hpp"

namespace oriel::comm {

struct Monitor::Keeper {
  std::atomic<Monitor*> monitor{nullptr};
  // The clock is made first and so destroyed last: the thread reads it until it is joined.
  Keeper() { static_cast<void>(SteadyClock::instance()); }
  ~Keeper() {
    // A forked child that never watched anything must not touch its parent's.
    Monitor* mine = monitor.exchange(nullptr);
    if (mine != nullptr && mine->owner_ == ::getpid()) delete mine;
  }
  static Keeper& get() {
    static Keeper keeper;
    return keeper;
  }
};

Monitor& Monitor::instance() {
  Keeper& keeper = Keeper::get();
  Monitor* current = keeper.monitor.load(std::memory_order_acquire);
  if (current != nullptr && current->owner_ == ::getpid()) return *current;
  auto* fresh = new Monitor;
  fresh->inherited_ = current;
  if (!keeper.monitor.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) {
    delete fresh;
    return *current;
  }
  if (current != nullptr) {
    const std::unique_lock lock(current->mutex_, std::try_to_lock);
    if (lock.owns_lock() && current->thread_) current->thread_->close_copies();
  }
  return *fresh;
}

Monitor::Monitor() : owner_(::getpid()) {}

Monitor::~Monitor() {
  if (thread_) {
    thread_->stop();
    ended_.push_back(std::move(thread_));
  }
  for (const auto& thread : ended_) thread->join();
}

Status Monitor::watch(Watched& watched, boot::Session& session, std::vector<Watch> processes,
                      std::vector<int> cpus) {
  reap();
  const std::lock_guard lock(mutex_);
  const bool first = !thread_;
  if (first) {
    ORIEL_TRY(thread_, Thread::start());
  }
  Status added;
  try {
    added = thread_->add(watched, session, std::move(processes), std::move(cpus));
  } catch (const std::bad_alloc&) {
    added = no_memory_error();
  }
  if (!added.ok() && first) {
    thread_->stop();
    thread_->join();
    thread_.reset();
  }
  return added;
}

// Not under the lock: a callback may be on its way to watch or unwatch.
void Monitor::reap() {
  std::vector<std::shared_ptr<Thread>> ended;
  {
    const std::lock_guard lock(mutex_);
    const auto own = std::partition(ended_.begin(), ended_.end(),
                                    [](const auto& thread) { return thread->is_current(); });
    ended.assign(std::make_move_iterator(own), std::make_move_iterator(ended_.end()));
    ended_.erase(own, ended_.end());
  }
  for (const auto& thread : ended) thread->join();
}

void Monitor::unwatch(Watched& watched) {
  std::shared_ptr<Thread> thread;
  {
    const std::lock_guard lock(mutex_);
    thread = thread_;
  }
  // Not under the lock: a callback that this waits for may itself watch or unwatch.
  if (!thread || thread->remove(watched)) return;
  {
    const std::lock_guard lock(mutex_);
    if (thread_ != thread || !thread->stop_if_idle()) return;
    thread_.reset();
    if (thread->is_current()) {
      ended_.push_back(std::move(thread));
      return;
    }
  }
  thread->join();
}

bool Monitor::running() {
  const std::lock_guard lock(mutex_);
  return thread_ != nullptr;
}

}  // namespace oriel::comm
