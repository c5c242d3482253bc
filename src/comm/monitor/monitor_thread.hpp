// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/owned_thread.hpp"
#include "boot/link/poller.hpp"
#include "comm/monitor/monitor.hpp"

namespace oriel::comm {

/// The monitor's thread and everything it watches. The thread ends when nothing is left to watch
/// and is not restarted: the next watch() makes a new object.
///
/// Locks: mutex_ guards everything. It is not held during callbacks or while a session is pumped.
/// Session locks may be taken while holding mutex_, never the reverse.
class Monitor::Thread {
 public:
  static Result<std::shared_ptr<Thread>> start();

  Status add(Watched& watched, boot::Session& session, std::vector<Watch> processes,
             std::vector<int> cpus);
  /// Removes an entry and waits for its running callback, unless called from it. Returns whether
  /// anything is left to watch.
  bool remove(Watched& watched);
  bool is_current() const { return thread_.is_current(); }
  /// Stops the thread if nothing is watched; returns whether it did.
  bool stop_if_idle();
  void stop();
  void join() { static_cast<void>(thread_.join()); }
  /// Closes, in a forked child, the copies of the parent's descriptors.
  void close_copies();

 private:
  using Token = boot::Poller::Token;
  struct Death {
    int rank;
    pid_t pid;
    Deadline believed;  // the time from which the rank counts as dead, unless it has left
  };
  struct Entry {
    Watched* watched;
    boot::Session* session;
    std::vector<Watch> processes;
    std::vector<int> cpus;  // processors near its device; may be empty
    std::vector<Death> deaths{};
    Token token = 0;
    bool ready = false;
    bool removed = false;
  };
  using EntryRef = std::shared_ptr<Entry>;
  /// One process, shared by all entries that watch it.
  struct Process {
    OwnedFd fd;
    Token token = 0;
  };

  explicit Thread(boot::Poller poller) : poller_(std::move(poller)) {}
  void run();
  /// Moves this thread to the processors near the devices of all entries, if the entries have
  /// changed.
  void move_near_devices();
  void turn(std::unique_lock<std::mutex>& lock, TimePoint& next_tick);
  /// Aborts all watched sessions, because events may have been missed.
  void give_up_all(std::unique_lock<std::mutex>& lock);
  Deadline next_wake(TimePoint next_tick);
  void watch_process(pid_t pid);
  void on_process_end(pid_t pid);
  void drop_unused_processes();
  /// Runs `work` for the entry without holding the lock, unless the entry has been removed.
  template <typename Work>
  void visit(std::unique_lock<std::mutex>& lock, const EntryRef& entry, Work work);
  static void settle_deaths(Entry& entry, const std::vector<Death>& due);
  bool still_watched(const EntryRef& entry);

  std::mutex mutex_;
  std::condition_variable visited_;
  boot::Poller poller_;
  OwnedFd wake_;
  std::vector<EntryRef> entries_;
  std::map<pid_t, Process> processes_;
  EntryRef visiting_;
  bool cpus_changed_ = false;
  bool stop_ = false;
  OwnedThread thread_;
};

}  // namespace oriel::comm
