// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "net/copy/copy_stream.hpp"
#include "net/copy/data_mover.hpp"

namespace oriel::net {

/// How far a copy stream has come and whether it has failed: the count that the stream writes
/// behind its work, and the first error. Owns neither the stream, which must outlive it, nor
/// memory. Not thread-safe.
class StreamProgress {
 public:
  explicit StreamProgress(CopyStream& stream) : stream_(stream) {}

  /// Returns whether a step may begin: the stream has room and has not failed.
  bool may_begin() { return failure_.ok() && stream_.has_room(); }
  /// Notes the result of a step. Returns false if this step or an earlier one has failed.
  bool check(Status step);
  /// Fails as check() does where the stream cannot reach the bytes at all. Returns how many of them
  /// one step can move.
  std::size_t reach(const std::byte* at, std::size_t count);

  /// Notes that work has begun. Returns its ticket.
  MoveTicket begin() {
    is_dirty_ = true;
    return latest();
  }
  /// Returns the ticket of all that has begun so far.
  MoveTicket latest() const { return told_ + 1; }
  /// Returns the ticket up to which the stream is done.
  MoveTicket done() const { return stream_.told(); }
  /// Has the stream count what began since the last call. Returns whether anything is under way.
  bool flush();

  const Status& failure() const { return failure_; }

 private:
  void look_after_stream();

  CopyStream& stream_;
  MoveTicket told_ = 0;    // counts that were enqueued
  bool is_dirty_ = false;  // something has begun since
  MoveTicket last_seen_ = 0;
  TimePoint looked_{};
  Status failure_;
};

}  // namespace oriel::net
