// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/fd.hpp"
#include "boot/link/frame.hpp"
#include "boot/link/poller.hpp"
#include "boot/link/tcp.hpp"

namespace oriel::boot {

/// One proven connection to another rank: what is still to be written, and the messages that have
/// come and nobody has asked for. These are at most kMaxInboxBytes and one read; beyond that the
/// connection is not read, so that TCP holds its sender back. Nothing here waits. Not thread-safe;
/// the poller must outlive it. Stays where it was made.
class Link {
 public:
  static constexpr std::size_t kMaxInboxBytes = std::size_t{128} << 20;

  Link(Poller& poller, OwnedFd fd) : poller_(&poller), fd_(std::move(fd)) {}
  ~Link() { poller_->remove(token_); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Has `handler` called when the connection can be read, or written if there is something to
  /// write.
  Status watch(Poller::Handler handler);

  /// Does nothing once the link is closed.
  void enqueue(Bytes frame);
  std::size_t queued_bytes() const { return queue_bytes_; }
  /// Returns whether bytes are still to be sent, here or in the kernel.
  bool unsent() const;
  /// Writes what the socket takes. Returns false if the peer has closed: what was to be written is
  /// dropped, and a read to the end yields the peer's last words.
  Result<bool> write();
  /// Reads for as long as this link's turn lasts, or to the end: puts messages into the inbox and
  /// appends other frames to `notices`. Returns false if the peer has closed. `scratch` is a buffer
  /// of any size.
  Result<bool> read(bool to_the_end, std::span<std::byte> scratch, std::vector<Frame>& notices);
  /// Writes as much of what is queued as goes at once, and closes.
  void close_after_last_words(std::span<std::byte> scratch);
  void close();

  std::optional<Bytes> pop();

  bool closed() const { return closed_; }
  /// Returns whether the link is closed, or about to be, because the peer's host is silent.
  bool silent() const { return silent_; }
  bool heard() const { return !closed_ && is_heard(fd_.get()); }
  /// The peer has said here, behind its last message, that it leaves.
  void note_departure() { left_ = true; }
  /// Returns whether no more messages can come than pop() has.
  bool ended() const { return closed_ || left_; }

 private:
  Result<IoOutcome> write_queue() const;
  void take_off_queue(std::size_t bytes);
  Status update_interest();

  Poller* poller_;
  OwnedFd fd_;
  Poller::Token token_ = 0;
  FrameReader reader_;
  std::deque<Bytes> inbox_;
  std::size_t inbox_bytes_ = 0;
  std::deque<Bytes> queue_;
  std::size_t queue_offset_ = 0;  // of the first entry, already written
  std::size_t queue_bytes_ = 0;
  bool closed_ = false;
  bool left_ = false;
  bool silent_ = false;
};

}  // namespace oriel::boot
