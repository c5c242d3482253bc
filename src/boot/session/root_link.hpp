// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/fd.hpp"
#include "base/task.hpp"
#include "boot/link/dialer.hpp"
#include "boot/link/frame.hpp"
#include "boot/link/links.hpp"
#include "boot/session/rendezvous.hpp"

namespace oriel::boot {

/// A joining rank's side of the rendezvous, after the handshake. Exists during join. Once watched,
/// it reports errors or the end of the root service as the session's failure.
class RootLink {
 public:
  RootLink(int rank, Links& links) : rank_(rank), links_(&links) {}
  ~RootLink();
  RootLink(const RootLink&) = delete;
  RootLink& operator=(const RootLink&) = delete;

  /// Switches to `fd`, a connection on which nothing has been sent.
  void take(OwnedFd fd);
  int fd() const { return fd_.get(); }
  Status send_hello(const RootHello& hello);
  /// Returns whether this rank's hello has been sent and, as far as known, read by the root
  /// service.
  bool hello_sent() const { return hello_sent_; }
  /// Returns whether the connection ended before the root service sent anything on it. Either this
  /// rank's hello came too late to be read, or the root service has died.
  bool turned_away() const { return turned_away_; }
  /// Returns the error for a root service that has died.
  Error gone() const;
  /// Processes what has arrived. The error is that of the rendezvous, or the end of the root
  /// service.
  Status read();
  const std::optional<PeerAddresses>& peers() const { return peers_; }

  /// Lets the links' poller read from now on. The caller holds the session's lock, also for done().
  Status watch();
  /// Reports that this rank is linked to all its neighbours.
  void done();
  /// Reports that this rank cannot continue, with the reason for the other ranks.
  void give_up(const Error& reason);
  /// Call after give_up(): waits briefly until the root service has forwarded the reason, which it
  /// shows by closing. The root service may be a thread of this process, which may end next.
  Task<void> linger(EventLoop& loop);

 private:
  Status on_frame(const Frame& frame);
  Error ended();
  void send(ByteView word);

  int rank_;
  Links* links_;
  OwnedFd fd_;
  Poller::Token token_ = 0;
  FrameReader reader_;
  int size_ = 0;
  bool hello_sent_ = false;
  bool received_ = false;  // a frame has arrived on this connection
  bool turned_away_ = false;
  int host_rank_ = -1;
  std::optional<PeerAddresses> peers_;
};

/// Reports `reason` for a rank that failed before it could send its hello, so that the other ranks
/// do not wait for their deadlines. Uses a connection of its own. Tries for one second, until
/// `deadline` at the latest; the error is why the report failed.
Task<Status> notify_root(EventLoop& loop, DialTarget target, RootHello hello, Error reason,
                         Deadline deadline);

}  // namespace oriel::boot
