// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "boot/link/acceptor.hpp"
#include "boot/link/dialer.hpp"
#include "boot/link/frame.hpp"
#include "boot/link/liveness.hpp"
#include "boot/link/notes.hpp"
#include "boot/link/poller.hpp"
#include "boot/link/tcp.hpp"

namespace oriel::boot {

/// One rank's proven TCP connections to other ranks. Of each pair the higher rank connects and the
/// lower one accepts. Nothing here waits: pump() handles whatever is ready, and poll_fd() is
/// readable when there is something.
///
/// Messages that arrive before they are asked for are kept, at most kMaxInboxBytes a link; beyond
/// that the link is not read, so that TCP holds its sender back. Not thread-safe (a Session locks).
/// Destruction order: links and dialers leave the poller before it closes.
class Links {
 public:
  static constexpr std::size_t kMaxInboxBytes = std::size_t{128} << 20;
  /// How long a peer may refuse connections before it counts as dead: whoever knows better, such as
  /// the root service, speaks up within that time.
  static constexpr Duration kRefusalGrace = std::chrono::milliseconds(200);

  struct Identity {
    int rank = 0;
    int size = 1;
    std::uint64_t realm = 0;  ///< the unique id's number
    Key key;                  ///< for KeyPurpose::link
  };

  static Result<std::unique_ptr<Links>> create(Identity identity, const Clock& clock);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  /// Listens for higher ranks on `local`; the address to tell them.
  Result<SocketAddress> listen(const SocketAddress& local);
  /// Accepts no more of them.
  void stop_listening() { acceptor_.stop(); }
  /// Which rank is on which host, by any number, so that the end of a link can be told from that of
  /// all.
  void set_hosts(std::vector<std::uint32_t> host_of) { host_of_ = std::move(host_of); }
  /// Starts to connect to a lower rank and keeps trying. Does nothing if there is a link already.
  Status dial(int peer, const SocketAddress& address);
  bool connected(int peer) const { return links_.contains(peer); }

  int poll_fd() const { return poller_.fd(); }
  Poller& poller() { return poller_; }
  /// When pump() is to be called even if nothing is ready.
  Deadline next_timer() const;
  /// Reads, writes, accepts, connects, forwards news. The error is a failure of the poller itself.
  Status pump();

  /// Queues a message and writes what the socket takes. Requires connected(peer).
  Status send(int peer, ByteView message);
  std::size_t queued_bytes(int peer) const;
  /// Tells every rank that this one leaves, also those that have yet to notice the connection.
  void say_left();
  /// Whether something that was sent is not on its way yet, here or in the kernel.
  bool unsent() const;
  std::optional<Bytes> pop(int peer);
  /// Sends a note on its way to any rank, linked or not. Lost if there is no way, or no room on it.
  Status send_note(int to, ByteView text);
  /// The next note of `from` that has arrived.
  std::optional<Bytes> take_note(int from) { return notes_.take(from); }
  /// Whether no message of this peer's can come any more but what pop() has: it has said itself
  /// that it leaves, or has closed the link.
  bool ended(int peer) const;

  Liveness& liveness() { return liveness_; }
  const Liveness& liveness() const { return liveness_; }
  /// Writes the news that liveness() holds to every link.
  void spread_news();
  /// Why this rank cannot accept the connections of others, if that has lasted.
  std::optional<Error> shortage() const { return acceptor_.shortage(); }
  /// Why an ongoing dial to `peer` has not succeeded so far; empty if there is nothing to say.
  std::string dial_trouble(int peer) const;

 private:
  struct Link {
    OwnedFd fd;
    Poller::Token token = 0;
    FrameReader reader;
    std::deque<Bytes> inbox;
    std::size_t inbox_bytes = 0;
    std::deque<Bytes> queue;
    std::size_t queue_offset = 0;  // of the first entry, already written
    std::size_t queue_bytes = 0;
    bool closed = false;  // by the peer; the inbox can still be read
    bool left = false;    // the peer has said so here, behind its last message
    bool silent = false;  // why it is closed, or about to be
  };
  struct Dial {
    DialTarget target;
    std::optional<Dialer> dialer;  // none between attempts
    Poller::Token token = 0;
    Deadline retry = Deadline::never();
    std::optional<TimePoint> refused_since;
    std::optional<TimePoint> failing_here_since;  // for a reason of this process or machine
    Duration pause{};
    std::string trouble;
  };

  Links(Identity identity, const Clock& clock, Poller poller);
  void start_attempt(int peer);
  void on_dial_event(int peer);
  void fail_attempt(int peer, const Error& error);
  void on_proven(ProvenConnection connection);
  void add_link(int peer, OwnedFd fd);
  void on_link_event(int peer, std::uint32_t events);
  void read_link(int peer, Link& link, bool to_the_end);
  void take_frames(int peer, Link& link, std::vector<Frame> frames);
  Status take_note_frame(ByteView payload);
  /// Queues it at the next link, whose rank is returned; -1 if it is lost.
  int forward(const Note& note);
  void write_link(int peer, Link& link);
  static Result<IoOutcome> write_queue(const Link& link);
  static void take_off_queue(Link& link, std::size_t bytes);
  void give_up_link(int peer, Link& link, const char* what, const Error& error);
  void close_link(Link& link);
  void enqueue(Link& link, Bytes frame);
  void on_closed(int peer, Link& link);
  bool is_cut_off(int peer) const;
  void update_interest(Link& link);

  Identity identity_;
  const Clock* clock_;
  Poller poller_;
  Liveness liveness_;
  Acceptor acceptor_;
  NoteBox notes_;
  std::map<int, Dial> dials_;
  std::map<int, Link> links_;
  std::vector<std::uint32_t> host_of_;  // by rank; empty: not known yet
  Bytes scratch_;
};

}  // namespace oriel::boot
