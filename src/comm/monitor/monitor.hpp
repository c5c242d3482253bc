// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <sys/types.h>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "boot/session/session.hpp"

namespace oriel::comm {

/// Receiver of events about the other ranks. The monitor's thread makes the calls, one at a time,
/// without holding a lock. A call may take its own locks, call the session, and call unwatch(). It
/// must not block for long, since all watched communicators share the thread.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Reports that a rank, perhaps this one, has died or aborted: the error names it as its origin.
  /// Called only for the first such rank of a session. If memory runs out in the monitor's thread,
  /// it may be called again.
  virtual void peer_lost(Error error) = 0;
  /// Reports that a rank has left in order.
  virtual void peer_left(int rank) = 0;
  /// Called every Monitor::kTick while this object is watched.
  virtual void tick(TimePoint now) = 0;
};

/// A rank in another process of this host whose pid is the same in both pid namespaces. A reused
/// pid does no harm: the kernel reuses a pid only after its process has ended. So a late watch
/// cannot make a live rank look dead.
struct Watch {
  int rank;
  pid_t pid;
};

/// Detects dead peers while no operation polls the links. One thread per process runs from the
/// first watch() to the last unwatch(). It pumps the sessions that have no Activity, and waits for
/// the end of same-host processes through pidfds. A death is reported within a second. If a link or
/// a message reports it, at once. If only the process end shows it, after kGrace, since a note that
/// the rank left may still be under way. If memory runs out in the thread, it aborts the sessions
/// that it watches, since it may have missed events, and goes on. The thread runs on the processors
/// near any of the devices whose ranks it watches.
///
/// Any thread. A forked child does not use its parent's monitor and gets its own.
class Monitor {
 public:
  static constexpr Duration kTick = std::chrono::milliseconds(100);
  static constexpr Duration kGrace = std::chrono::milliseconds(200);

  static Monitor& instance();

  /// Starts watching. `watched` and `session` must live until unwatch(). `processes` may be empty.
  /// A process that has already ended counts as dead. A process that cannot be watched is skipped:
  /// its links report a death. `cpus`, ascending, are the processors near the rank's device; empty
  /// if irrelevant. Call unwatch() even if this fails.
  Status watch(Watched& watched, boot::Session& session, std::vector<Watch> processes,
               std::vector<int> cpus = {});
  /// Ends the watch, if any. Waits for a running callback to return, unless it is called from the
  /// callback.
  void unwatch(Watched& watched);

 private:
  class Thread;

  Monitor();

  const pid_t owner_;
  Monitor* inherited_ = nullptr;  // the parent's; kept reachable for leak checkers
  std::mutex mutex_;              // guards the pointers
  std::shared_ptr<Thread> thread_;
};

}  // namespace oriel::comm
