// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/stream_progress.hpp"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"

namespace oriel::net {
namespace {

/// Time without progress of the count after which the driver is asked whether the stream is alive.
constexpr std::chrono::milliseconds kProgressTimeout{20};

}  // namespace

bool StreamProgress::check(Status step) {
  if (!step.ok() && failure_.ok()) {
    failure_ = std::move(step);
    Log().warn(
        "a software NIC moves no bytes of its GPU any more ({}); hint: look up the status, and "
        "start a new process",
        failure_.error().to_string());
  }
  return failure_.ok();
}

std::size_t StreamProgress::reach(const std::byte* at, std::size_t count) {
  const std::size_t most = stream_.reach(at, count);
  if (most == 0 && count != 0) {
    static_cast<void>(
        check(Error(ErrorCode::internal,
                    fmt::format("{} bytes at {} are no memory that a software NIC's process has",
                                count, static_cast<const void*>(at)))));
  }
  return most;
}

bool StreamProgress::flush() {
  if (is_dirty_ && may_begin() && check(stream_.signal(latest()))) {
    ++signalled_;
    is_dirty_ = false;
  }
  if (!is_dirty_ && signalled_ <= done()) {
    last_seen_ = signalled_;
    return false;
  }
  poll_if_silent();
  return failure_.ok();
}

void StreamProgress::poll_if_silent() {
  if (!failure_.ok()) return;
  const MoveTicket seen = done();
  const TimePoint now = SteadyClock::instance().now();
  if (seen != last_seen_ || polled_ == TimePoint{}) {
    last_seen_ = seen;
    polled_ = now;
    return;
  }
  if (now - polled_ < kProgressTimeout) return;
  polled_ = now;
  static_cast<void>(check(stream_.poll()));
}

}  // namespace oriel::net
