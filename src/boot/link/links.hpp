// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "boot/link/acceptor.hpp"
#include "boot/link/dials.hpp"
#include "boot/link/frame.hpp"
#include "boot/link/link.hpp"
#include "boot/link/liveness.hpp"
#include "boot/link/notes.hpp"
#include "boot/link/poller.hpp"

namespace oriel::boot {

/// One rank's proven TCP connections to other ranks, what it knows of their life, and the notes
/// that travel on them. Of each pair the higher rank connects and the lower one accepts. Nothing
/// here waits: pump() handles whatever is ready, and the poller's descriptor is readable when there
/// is something. Not thread-safe (Peers has the lock).
class Links {
 public:
  static Result<std::unique_ptr<Links>> create(LinkIdentity identity, const Clock& clock);
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  Poller& poller() { return poller_; }
  /// Listens for higher ranks.
  Acceptor& acceptor() { return acceptor_; }
  const Dials& dials() const { return dials_; }
  Liveness& liveness() { return liveness_; }
  const Liveness& liveness() const { return liveness_; }
  NoteBox& notes() { return notes_; }
  /// Null if there is no link to this rank.
  Link* find(int peer);

  /// Starts to connect to a lower rank and keeps trying. Does nothing if there is a link already.
  Status dial(int peer, const SocketAddress& address);
  /// Sets the host of each rank, as any number, so that the end of one link differs from the end of
  /// all links to a host.
  void set_hosts(std::vector<std::uint32_t> host_of) { host_of_ = std::move(host_of); }

  /// When pump() is to be called even if nothing is ready.
  Deadline next_timer() const;
  /// Reads, writes, accepts, connects, forwards news. The error is a failure of the poller itself.
  Status pump();

  /// Queues a message and writes what the socket takes. Requires find(peer).
  Status send(int peer, ByteView message);
  /// Sends a note on its way to any rank, linked or not. Lost if there is no way, or no room on it.
  Status send_note(int to, ByteView text, NoteTopic topic);
  /// Writes the news that liveness() holds, and what else is queued, to every link.
  void spread_news();
  /// Tells every rank that this one leaves, also those that have yet to notice the connection.
  void say_left();
  /// Returns whether bytes are still to be sent, here or in the kernel.
  bool unsent() const;

 private:
  Links(LinkIdentity identity, const Clock& clock, Poller poller);
  void add_link(int peer, OwnedFd fd);
  void read(int peer, Link& link, bool to_the_end);
  void write(int peer, Link& link);
  void take(int peer, Link& link, const Frame& notice);
  /// Queues it at the next link, whose rank is returned; -1 if it is lost.
  int forward(const Note& note);
  void give_up(int peer, Link& link, const char* what, const Error& error);
  bool is_cut_off(int peer) const;

  const LinkIdentity identity_;
  Poller poller_;
  Liveness liveness_;
  Acceptor acceptor_;
  Dials dials_;
  NoteBox notes_;
  std::map<int, Link> links_;
  std::vector<std::uint32_t> host_of_;  // by rank; empty: not known yet
  Bytes scratch_;
};

}  // namespace oriel::boot
