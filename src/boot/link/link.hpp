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

/// One authenticated connection to another rank: the send queue, and the received messages that
/// nobody has taken yet. If those exceed kMaxInboxBytes, the connection is not read, so TCP flow
/// control stops the sender. No member waits. Not thread-safe; the poller must outlive the link.
/// Not movable.
class Link {
 public:
  static constexpr std::size_t kMaxInboxBytes = std::size_t{128} << 20;

  Link(Poller& poller, OwnedFd fd) : poller_(&poller), fd_(std::move(fd)) {}
  ~Link() { poller_->remove(token_); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Registers `handler`, called when the connection is readable, or when it is writable and the
  /// send queue is not empty.
  Status watch(Poller::Handler handler);

  /// Appends a frame to the send queue. Does nothing if the link is closed.
  void enqueue(Bytes frame);
  std::size_t queued_bytes() const { return queue_bytes_; }
  /// Returns whether bytes wait to be sent, in the send queue or in the kernel.
  bool unsent() const;
  /// Writes as much as the socket takes. If the peer has closed, drops the send queue and returns
  /// false; a read to the end then returns the peer's last frames.
  Result<bool> write();
  /// Reads for one turn of this link, or to the end. Puts messages into the inbox and appends other
  /// frames to `notices`. Returns false if the peer has closed. `scratch` is a buffer of any size.
  Result<bool> read(bool to_the_end, std::span<std::byte> scratch, std::vector<Frame>& notices);
  /// Writes as much of the send queue as the socket takes at once, then closes the link.
  void drain_and_close(std::span<std::byte> scratch);
  void close();

  std::optional<Bytes> pop();

  bool closed() const { return closed_; }
  /// Returns whether the link has closed, or will close, because the peer's host is silent.
  bool silent() const { return silent_; }
  bool has_answered() const { return !closed_ && boot::has_answered(fd_.get()); }
  /// Records that the peer has sent its departure, which follows its last message.
  void note_departure() { left_ = true; }
  /// Returns whether no further messages can arrive; pop() may still have some.
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
  std::size_t queue_offset_ = 0;  // bytes of the first frame that are already written
  std::size_t queue_bytes_ = 0;
  bool closed_ = false;
  bool left_ = false;
  bool silent_ = false;
};

}  // namespace oriel::boot
