// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/monitor/monitor_thread.hpp"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>

#include "base/try.hpp"
#include "topo/choice/affinity.hpp"
#include "topo/choice/placement.hpp"

namespace oriel::comm {
namespace {

const Clock& steady() {
  return SteadyClock::instance();
}

}  // namespace

Result<std::shared_ptr<Monitor::Thread>> Monitor::Thread::start() {
  ORIEL_TRY(boot::Poller poller, boot::Poller::create());
  auto made = std::shared_ptr<Thread>(new Thread(std::move(poller)));
  made->wake_ = OwnedFd(sys().eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made->wake_) return system_error("eventfd");
  const int wake_fd = made->wake_.get();
  const auto token = made->poller_.add(wake_fd, EPOLLIN, [wake_fd](std::uint32_t) {
    eventfd_t count = 0;
    static_cast<void>(sys().eventfd_read(wake_fd, &count));
  });
  if (!token.ok()) return token.error();
  // Both functions hold a reference to the object: unwatch() from a callback drops the monitor's.
  auto started = OwnedThread::start(
      {.name = "oriel-monitor", .body = [made] { made->run(); }, .stop = [made] { made->stop(); }});
  if (!started.ok()) return std::move(started).error();
  made->thread_ = std::move(started).value();
  return made;
}

Status Monitor::Thread::add(Watched& watched, boot::Session& session, std::vector<Watch> processes,
                            std::vector<int> cpus) {
  const std::lock_guard lock(mutex_);
  auto entry =
      std::make_shared<Entry>(Entry{&watched, &session, std::move(processes), std::move(cpus)});
  Entry* raw = entry.get();
  entries_.reserve(entries_.size() + 1);
  entry->token = poller_.add_foreign([raw](std::uint32_t) { raw->ready = true; });
  Status attached = session.peers().attach_idle(poller_.fd(), entry->token);
  if (!attached.ok()) {
    poller_.remove(entry->token);
    return attached;
  }
  entry->ready = true;  // for events that are already there
  cpus_changed_ = true;
  entries_.push_back(entry);
  for (const Watch& process : entry->processes) watch_process(process.pid);
  raise_event(wake_);
  return {};
}

bool Monitor::Thread::remove(Watched& watched) {
  std::unique_lock lock(mutex_);
  const auto it = std::find_if(entries_.begin(), entries_.end(),
                               [&](const EntryRef& entry) { return entry->watched == &watched; });
  if (it == entries_.end()) return !entries_.empty();  // watch() of this object has failed
  const EntryRef entry = *it;
  entries_.erase(it);
  entry->removed = true;
  cpus_changed_ = true;
  entry->session->peers().detach_idle();
  poller_.remove(entry->token);
  drop_unused_processes();
  if (!is_current()) visited_.wait(lock, [&] { return visiting_ != entry; });
  return !entries_.empty();
}

bool Monitor::Thread::stop_if_idle() {
  const std::lock_guard lock(mutex_);
  if (!entries_.empty() || stop_) return false;
  stop_ = true;
  raise_event(wake_);
  return true;
}

void Monitor::Thread::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  raise_event(wake_);
}

// Does nothing if the parent's thread held the lock at the fork: its data may be inconsistent.
void Monitor::Thread::close_copies() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  poller_.disown();
  wake_.reset();
  processes_.clear();
}

void Monitor::Thread::watch_process(pid_t pid) {
  if (processes_.contains(pid)) return;
  OwnedFd fd(sys().pidfd_open(pid, 0));
  if (!fd) {
    if (errno == ESRCH) on_process_end(pid);
    return;  // an old kernel or a sandbox: the links still report a death
  }
  const auto token =
      poller_.add(fd.get(), EPOLLIN, [this, pid](std::uint32_t) { on_process_end(pid); });
  if (!token.ok()) return;
  processes_[pid] = {std::move(fd), token.value()};
}

void Monitor::Thread::on_process_end(pid_t pid) {
  const auto it = processes_.find(pid);
  if (it != processes_.end()) {
    poller_.remove(it->second.token);
    processes_.erase(it);
  }
  const Deadline believed = Deadline::after(kGrace, steady());
  for (const EntryRef& entry : entries_) {
    for (const Watch& process : entry->processes) {
      if (process.pid != pid) continue;
      entry->deaths.push_back({process.rank, pid, believed});
    }
  }
}

void Monitor::Thread::drop_unused_processes() {
  for (auto it = processes_.begin(); it != processes_.end();) {
    const bool used = std::any_of(entries_.begin(), entries_.end(), [&](const EntryRef& entry) {
      return std::any_of(entry->processes.begin(), entry->processes.end(),
                         [&](const Watch& process) { return process.pid == it->first; });
    });
    if (used) {
      ++it;
      continue;
    }
    poller_.remove(it->second.token);
    it = processes_.erase(it);
  }
}

Deadline Monitor::Thread::next_wake(TimePoint next_tick) {
  Deadline next = Deadline::at(next_tick);
  for (const EntryRef& entry : entries_) {
    if (entry->ready) return Deadline::at(steady().now());
    next = earlier(next, entry->session->peers().idle_timer());
    for (const Death& death : entry->deaths) next = earlier(next, death.believed);
  }
  return next;
}

template <typename Work>
void Monitor::Thread::visit(std::unique_lock<std::mutex>& lock, const EntryRef& entry, Work work) {
  if (entry->removed) return;
  visiting_ = entry;
  lock.unlock();
  work();
  lock.lock();
  visiting_.reset();
  visited_.notify_all();
}

bool Monitor::Thread::still_watched(const EntryRef& entry) {
  const std::lock_guard lock(mutex_);
  return !entry->removed;
}

void Monitor::Thread::settle_deaths(Entry& entry, const std::vector<Death>& due) {
  for (const Death& death : due) {
    if (entry.session->has_left(death.rank)) continue;
    entry.session->peers().report_death(death.rank,
                                        fmt::format("its process {} has ended", death.pid));
  }
}

void Monitor::Thread::give_up_all(std::unique_lock<std::mutex>& lock) {
  const auto entries = entries_;
  for (const EntryRef& entry : entries) {
    if (stop_) return;
    visit(lock, entry, [&entry] {
      const Error reason =
          Error(ErrorCode::system, "the thread that watches the other ranks has failed")
              .with_origin(entry->session->rank())
              .with_hint(
                  "free memory or raise its limit (ulimit -v, cgroup), and start a new process");
      entry->session->abort(reason);
      entry->watched->peer_lost(reason);
    });
  }
}

void Monitor::Thread::move_near_devices() {
  if (!std::exchange(cpus_changed_, false)) return;
  std::vector<int> cpus;
  for (const EntryRef& entry : entries_) cpus = topo::united(cpus, entry->cpus);
  topo::run_this_thread_on(cpus);
}

void Monitor::Thread::turn(std::unique_lock<std::mutex>& lock, TimePoint& next_tick) {
  move_near_devices();
  const Deadline wake = next_wake(next_tick);
  lock.unlock();
  const auto events = poller_.wait(wake, steady());
  lock.lock();
  // Continues with the ticks after an error; epoll_wait fails only on a programming error.
  if (events.ok()) poller_.dispatch(events.value());

  const TimePoint now = steady().now();
  const bool tick_due = now >= next_tick;
  if (tick_due) next_tick = now + kTick;
  const auto entries = entries_;
  for (const EntryRef& entry : entries) {
    std::vector<Death> due;
    std::erase_if(entry->deaths, [&](const Death& death) {
      if (death.believed.expired(now)) due.push_back(death);
      return death.believed.expired(now);
    });
    const bool timer_due = entry->removed || entry->session->peers().idle_timer().expired(now);
    if (!entry->ready && due.empty() && !tick_due && !timer_due) continue;
    entry->ready = false;
    visit(lock, entry, [&] {
      auto happened = entry->session->peers().pump_idle();
      if (!due.empty()) {
        settle_deaths(*entry, due);
        for (auto& event : entry->session->peers().pump_idle()) {
          happened.push_back(std::move(event));
        }
      }
      for (auto& event : happened) {
        if (!still_watched(entry)) return;
        if (event.kind == boot::PeerEvent::Kind::left) {
          entry->watched->peer_left(event.rank);
        } else {
          entry->watched->peer_lost(std::move(event.error));
        }
      }
      if (!tick_due || !still_watched(entry)) return;
      entry->watched->tick(now);
    });
  }
}

void Monitor::Thread::run() {
  TimePoint next_tick = steady().now() + kTick;
  std::unique_lock lock(mutex_);
  const auto attempt = [&](const auto& step) {
    try {
      step();
      return true;
    } catch (const std::bad_alloc&) {
      if (!lock.owns_lock()) lock.lock();
      visiting_.reset();
      visited_.notify_all();
      return false;
    }
  };
  while (!stop_) {
    if (attempt([&] { turn(lock, next_tick); })) continue;
    // Aborts the sessions, since nobody else reports what this turn lost. Later watches use the
    // same thread.
    attempt([&] { give_up_all(lock); });
  }
}

}  // namespace oriel::comm
