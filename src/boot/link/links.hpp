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

/// Proven TCP connections of one rank, its liveness state, and the notes that travel on the links.
/// Of each pair, the higher rank connects and the lower rank accepts. No member waits: pump()
/// handles what is ready, and the poller's descriptor is readable if something is. Not thread-safe
/// (Peers has the lock).
class Links {
 public:
  static Result<std::unique_ptr<Links>> create(LinkIdentity identity, const Clock& clock);
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  Poller& poller() { return poller_; }
  /// Returns the acceptor that listens for higher ranks.
  Acceptor& acceptor() { return acceptor_; }
  const Dials& dials() const { return dials_; }
  Liveness& liveness() { return liveness_; }
  const Liveness& liveness() const { return liveness_; }
  NoteBox& notes() { return notes_; }
  /// Returns the link to `peer`; null if there is none.
  Link* find(int peer);

  /// Connects to a lower rank and keeps retrying. Does nothing if there is a link already.
  Status dial(int peer, const SocketAddress& address);
  /// Sets a host number for each rank. With these numbers, is_cut_off() tells whether this rank's
  /// own host is cut off. Without them, it returns false.
  void set_hosts(std::vector<std::uint32_t> host_of) { host_of_ = std::move(host_of); }

  /// Returns the time of the next pump() call, due even if nothing is ready.
  Deadline next_timer() const;
  /// Reads, writes, accepts, connects and forwards notices. Returns an error if the poller itself
  /// fails.
  Status pump();

  /// Queues a message and writes as much as the socket takes. Requires find(peer).
  Status send(int peer, ByteView message);
  /// Starts a note to any rank, linked or not. The note is lost if no link leads there or has room.
  Status send_note(int to, ByteView text, NoteTopic topic);
  /// Writes the notices of liveness(), and everything queued, to every link.
  void send_notices();
  /// Sends this rank's departure to every rank, also to peers that were sent this rank's
  /// response but have not confirmed it yet.
  void send_departure();
  /// Returns whether bytes wait to be sent on any link, in a send queue or in the kernel.
  bool unsent() const;

 private:
  Links(LinkIdentity identity, const Clock& clock, Poller poller);
  void add_link(int peer, OwnedFd fd);
  void read(int peer, Link& link, bool to_the_end);
  void write(int peer, Link& link);
  void take(int peer, Link& link, const Frame& notice);
  /// Queues the note at the link of the next hop. Returns the rank of that link; -1 if the note is
  /// lost.
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
  std::vector<std::uint32_t> host_of_;  // by rank; empty while unknown
  Bytes scratch_;
};

}  // namespace oriel::boot
