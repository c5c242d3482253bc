// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "net/copy/copy_engine.hpp"
#include "net/copy/copy_stream.hpp"

namespace oriel::net {

/// Progress and failure of a copy stream: the count that the stream writes after its work, and the
/// first error. Does not own the stream, which must outlive it. Not thread-safe.
class StreamProgress {
 public:
  explicit StreamProgress(CopyStream& stream) : stream_(stream) {}

  /// Returns whether a step may begin: the stream has capacity and has not failed.
  bool may_begin() { return failure_.ok() && stream_.has_capacity(); }
  /// Notes the result of a step. Returns false if this step or an earlier one has failed.
  bool check(Status step);
  /// Returns how many of the bytes one step can move. If the stream cannot reach them at all, fails
  /// as check() does.
  std::size_t reach(const std::byte* at, std::size_t count);

  /// Notes that a step has started. Returns its ticket.
  MoveTicket begin() {
    is_dirty_ = true;
    return latest();
  }
  /// Returns the ticket of all steps started so far.
  MoveTicket latest() const { return signalled_ + 1; }
  /// Returns the ticket up to which the stream is done.
  MoveTicket done() const { return stream_.signalled(); }
  /// Makes the stream count the steps started since the last call. Returns whether any step is in
  /// flight.
  bool flush();

  const Status& failure() const { return failure_; }

 private:
  void poll_if_silent();

  CopyStream& stream_;
  MoveTicket signalled_ = 0;  // counts that were enqueued
  bool is_dirty_ = false;     // a step has started since the last count
  MoveTicket last_seen_ = 0;
  TimePoint polled_{};
  Status failure_;
};

}  // namespace oriel::net
