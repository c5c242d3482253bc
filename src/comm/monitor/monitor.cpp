// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/monitor/monitor.hpp"

#include <atomic>
#include <utility>

#include <unistd.h>

#include "base/try.hpp"
#include "comm/monitor/monitor_thread.hpp"

namespace oriel::comm {

Monitor& Monitor::instance() {
  // Never destroyed: other threads may be in a call while the process exits.
  static constinit std::atomic<Monitor*> monitor{nullptr};
  Monitor* current = monitor.load(std::memory_order_acquire);
  if (current != nullptr && current->owner_ == ::getpid()) return *current;
  auto* fresh = new Monitor;
  fresh->inherited_ = current;
  if (!monitor.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) {
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

Status Monitor::watch(Watched& watched, boot::Session& session, std::vector<Watch> processes,
                      std::vector<int> cpus) {
  const std::lock_guard lock(mutex_);
  if (!thread_) {
    ORIEL_TRY(thread_, Thread::start());
  }
  return thread_->add(watched, session, std::move(processes), std::move(cpus));
}

void Monitor::unwatch(Watched& watched) {
  std::shared_ptr<Thread> thread;
  {
    const std::lock_guard lock(mutex_);
    thread = thread_;
  }
  // Called without the lock: a callback that remove() waits for may itself watch or unwatch.
  if (!thread || thread->remove(watched)) return;
  {
    const std::lock_guard lock(mutex_);
    if (thread_ != thread || !thread->stop_if_idle()) return;
    thread_.reset();
  }
  if (!thread->is_current()) thread->join();
}

}  // namespace oriel::comm
