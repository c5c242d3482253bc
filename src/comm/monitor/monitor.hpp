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

/// Whoever wants to know how the other ranks are. The calls come from the monitor's thread, one at
/// a time, with no lock held: they may take locks of their own, call the session, and call
/// unwatch(), but must not wait for long, since all watched communicators share the thread.
class Watched {
 public:
  virtual ~Watched() = default;
  /// A rank, perhaps this one, has died or given up: the error names it as its origin. Once for
  /// each such rank.
  virtual void peer_lost(Error error) = 0;
  /// A rank has left in order.
  virtual void peer_left(int rank) = 0;
  /// Every Monitor::kTick as long as it is watched.
  virtual void tick(TimePoint now) = 0;
};

/// A rank that is another process of this host, whose pid means the same here as there. A pid is
/// given to another process only after its own has ended, so one that is late to be watched cannot
/// make a rank that lives look dead.
struct Watch {
  int rank;
  pid_t pid;
};

/// Sees dead peers while no operation looks at the links: one thread per process, which runs from
/// the first watch() to the last unwatch(). It pumps the sessions that have no Activity, and waits
/// for the end of same-host processes through pidfds. A death is reported within a second: at once
/// where a link or a notice tells, after kGrace where only the end of a process does, for the
/// notice of its departure may still be on its way. If memory runs out in that thread, it
/// ends the sessions that it watches, for it may have missed something of any of them, and goes on.
/// It runs on the processors near any of the devices whose ranks it watches.
///
/// Any thread. A forked child has no part in its parent's monitor and gets its own.
class Monitor {
 public:
  static constexpr Duration kTick = std::chrono::milliseconds(100);
  static constexpr Duration kGrace = std::chrono::milliseconds(200);

  static Monitor& instance();

  /// Both must live until unwatch(). `processes` may be empty; a process that has gone already is a
  /// death, one that may not be watched is left out (its links tell). `cpus`, ascending, are the
  /// processors near the rank's device; none if that does not matter. unwatch() is to follow also
  /// where this fails.
  Status watch(Watched& watched, boot::Session& session, std::vector<Watch> processes,
               std::vector<int> cpus = {});
  /// Ends the watch, if there is one, after a callback that runs has returned; at once when called
  /// from it.
  void unwatch(Watched& watched);

 private:
  class Thread;

  Monitor();

  const pid_t owner_;
  Monitor* inherited_ = nullptr;  // the parent's, kept so that it does not count as lost
  std::mutex mutex_;              // guards the pointers
  std::shared_ptr<Thread> thread_;
};

}  // namespace oriel::comm
