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

/// Links of a rank to the other ranks, with the lock that guards them. Any thread may send notices
/// to these ranks and read their state, during an operation or not. A call waits for other threads
/// at most as long as one non-blocking pump of the links. The only rank of a communicator has no
/// links and no socket.
class Peers {
 public:
  explicit Peers(int rank);
  /// Sends this rank's departure to the other ranks, and closes. Waits only while messages remain
  /// to be sent, for kFlushTime at most.
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Creates the links. Call before any other thread knows this object.
  Status open(LinkIdentity identity, const Clock& clock);

  /// Announces that this rank has made its last call. The other ranks continue with the messages
  /// they already have; later failures of this rank are not sent. Does not wait. Idempotent.
  void leave();
  /// Ends the session with `reason`, here and on every other rank. Does not wait. Idempotent.
  void abort(const Error& reason);
  /// Records a death seen elsewhere (a pidfd), and sends it to the other ranks.
  void report_death(int rank, const std::string& how);
  /// Sends a note of at most kMaxNoteBytes to any rank, outside of all operations; it may be lost.
  /// Notes travel while the links are pumped, on this rank and on those between: by operations, or
  /// by the watcher of idle sessions. Does not wait.
  Status send_note(int to, ByteView text, NoteTopic topic = NoteTopic::failover);
  /// Returns the oldest untaken note of this topic from rank `from`; with kAnyRank, from any rank.
  /// `to` is not set.
  std::optional<Note> take_note(NoteTopic topic, int from = kAnyRank);
  /// Announces that this rank has waited long for rank `on` outside of all operations; -1 ends the
  /// wait. `on` may be this rank. Does nothing during an operation, which announces its own waits.
  /// Does not wait.
  void send_waiting(int on);
  /// Follows the announced waits from `on`, and returns the last rank of the chain.
  ChainEnd end_of_wait(int on) const;
  /// Returns the error that has ended the session, if any.
  std::optional<Error> failure() const;
  bool has_left(int rank) const;

  /// Adds the links to `epoll_fd` (EPOLLIN | EPOLLONESHOT, with `token`; pump_idle() re-arms them).
  /// Events come only while no operation is in progress. At most one watcher.
  Status attach_idle(int epoll_fd, std::uint64_t token);
  void detach_idle();
  /// Pumps the links once without waiting, unless an operation is in progress, and re-arms the
  /// watcher. Returns the events of other ranks since the last call, whichever thread received
  /// them.
  std::vector<PeerEvent> pump_idle();
  /// Returns the time of the next pump_idle() call, due even if nothing is ready.
  Deadline idle_timer() const;

  static constexpr Duration kFlushTime = std::chrono::seconds(1);

  // For operations, which hold lock() while they call the members below.
  std::unique_lock<std::mutex> lock() const { return std::unique_lock(mutex_); }
  Links* links() const { return links_.get(); }  ///< null for the only rank
  bool is_busy() const { return busy_; }
  /// Records that an operation starts or ends.
  void set_busy(bool busy);
  /// Aborts with `error`; returns it in the form that the other ranks receive.
  Error fail(Error error);
  /// Returns the rank that this rank waits for, as announced to the others; -1 for none.
  int waiting_on() const { return waiting_on_; }
  void send_waiting_locked(int on);

 private:
  void take_leave();
  void arm_idle(bool on);

  const pid_t owner_;  // a forked child must not send in its parent's name
  const int rank_;
  mutable std::mutex mutex_;      // guards all below
  OwnedFd wake_;                  // member of the links' poller
  std::unique_ptr<Links> links_;  // null if there is only one rank
  std::optional<Error> solo_failure_;
  bool busy_ = false;  // an operation is in progress
  int waiting_on_ = -1;
  int idle_epoll_ = -1;
  std::uint64_t idle_token_ = 0;
};

}  // namespace oriel::boot
