// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "boot/link/links.hpp"

namespace oriel::boot {

/// A rank's links to the other ranks with the lock that guards them: what any thread may tell these
/// ranks, and ask about them, whether or not an operation is in progress. Nothing here waits for
/// another thread for longer than one non-blocking turn of the links. The only rank of a
/// communicator has no links, and no socket.
class Peers {
 public:
  explicit Peers(int rank);
  /// Tells the other ranks that this one has left, and closes. Does not wait, unless messages are
  /// still to be sent: then at most kFlushTime.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Makes the links. Before any other thread knows of this.
  Status open(LinkIdentity identity, const Clock& clock);

  /// Tells the other ranks that this one has made its last call. They go on with what they have of
  /// it already; what goes wrong here from now on is no longer told. Does not wait. Idempotent.
  void leave();
  /// Ends the session with `reason`, here and on every other rank. Does not wait. Idempotent.
  void abort(const Error& reason);
  /// A death seen from elsewhere (a pidfd), of which the other ranks are told.
  void report_death(int rank, const std::string& how);
  /// A short message to any rank outside of all operations, as of kMaxNoteBytes; it may be lost.
  /// Notes travel while the links are pumped, be it by operations or by whoever watches idle
  /// sessions, on this rank and on those between. Does not wait.
  Status send_note(int to, ByteView text, NoteTopic topic = NoteTopic::failover);
  /// The oldest note of this topic that has arrived from rank `from`, or from any with kAnyRank,
  /// and was not taken. Its `to` is not set.
  std::optional<Note> take_note(NoteTopic topic, int from = kAnyRank);
  /// Tells the other ranks that this one has waited long for rank `on` outside of all operations,
  /// or no longer does (-1). An operation that is in progress speaks for itself. Does not wait.
  void tell_waiting(int on);
  /// The rank at the end of the chain of ranks that wait for each other from `on` on, as far as
  /// they have told: `on` if it waits for nobody, -1 if they wait in a circle.
  int end_of_wait(int on) const;
  /// Returns the error that has ended the session, if any.
  std::optional<Error> failure() const;
  bool has_left(int rank) const;

  /// Has `epoll_fd` told of the links (EPOLLIN, with `token`, once; see pump_idle) whenever no
  /// operation is in progress. At most one watcher.
  Status attach_idle(int epoll_fd, std::uint64_t token);
  void detach_idle();
  /// Turns the links once without waiting, unless an operation is in progress, and watches again.
  /// Yields what happened to the ranks since the last call, whoever learned it.
  std::vector<PeerEvent> pump_idle();
  /// When pump_idle() is to be called even if nothing is ready.
  Deadline idle_timer() const;

  static constexpr Duration kFlushTime = std::chrono::seconds(1);

  // For operations, which hold the lock while they call the rest.
  std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  Links* links() const { return links_.get(); }  ///< null for the only rank
  bool is_busy() const { return busy_; }
  /// An operation begins or ends.
  void set_busy(bool busy);
  /// Gives up with `error` and yields it as the other ranks get it.
  Error fail(Error error);
  /// Returns the rank that this rank waits for, as it has told the others; -1 for none.
  int told_waiting_on() const { return waiting_on_; }
  void tell_waiting_locked(int on);

 private:
  void take_leave();
  void arm_idle(bool on);

  const pid_t owner_;  // a forked child must not speak for its parent
  const int rank_;
  mutable std::mutex mutex_;      // guards all below
  OwnedFd wake_;                  // in the links' poller
  std::unique_ptr<Links> links_;  // null for one rank
  std::optional<Error> solo_failure_;
  bool busy_ = false;  // an operation is in progress
  int waiting_on_ = -1;
  int idle_epoll_ = -1;
  std::uint64_t idle_token_ = 0;
};

}  // namespace oriel::boot
