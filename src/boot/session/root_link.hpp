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

/// A joining rank's side of the rendezvous, after the handshake. It lives for the length of join
/// and, once watched, reports the root service's end or errors as the session's failure.
class RootLink {
 public:
  RootLink(int rank, Links& links) : rank_(rank), links_(&links) {}
  ~RootLink();
  RootLink(const RootLink&) = delete;
  RootLink& operator=(const RootLink&) = delete;

  /// Goes on with `fd`, a connection on which nothing has been said.
  void take(OwnedFd fd);
  int fd() const { return fd_.get(); }
  Status greet(const RootHello& hello);
  /// Whether the root service knows this rank, as far as one can tell from here.
  bool greeted() const { return greeted_; }
  /// Whether the connection has ended before the root service said anything on it: either this
  /// rank's hello came too late and was not read, or the root service has died.
  bool turned_away() const { return turned_away_; }
  /// That the root service has died.
  Error gone() const;
  /// Takes in what has arrived. The error is the rendezvous's, or the root service's end.
  Status read();
  const std::optional<PeerAddresses>& peers() const { return peers_; }

  /// From now on the links' poller reads. The caller holds the session's lock, as for done().
  Status watch();
  /// This rank is linked to all its neighbours.
  void done();
  /// This rank cannot go on, and the others should know why.
  void give_up(const Error& reason);
  /// After give_up(): waits for a moment until the root service has passed the reason on, which it
  /// shows by closing. It may be a thread of this very process, which may end next.
  Task<void> linger(EventLoop& loop);

 private:
  Status on_frame(const Frame& frame);
  Error ended();
  void say(ByteView word);

  int rank_;
  Links* links_;
  OwnedFd fd_;
  Poller::Token token_ = 0;
  FrameReader reader_;
  int size_ = 0;
  bool greeted_ = false;
  bool heard_ = false;  // a frame has come on this connection
  bool turned_away_ = false;
  int host_rank_ = -1;
  std::optional<PeerAddresses> peers_;
};

/// For a rank that has failed before it could introduce itself: does so on a connection of its own,
/// and gives up with `reason`, so that the other ranks need not wait for it until their deadlines.
/// Tries for a second, and not after `deadline`; the error is why that did not work.
Task<Status> tell_root(EventLoop& loop, DialTarget target, RootHello hello, Error reason,
                       Deadline deadline);

}  // namespace oriel::boot
