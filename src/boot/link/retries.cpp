// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/retries.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace oriel::boot {
namespace {

bool can_try_again(const Error& error) {
  if (error.code() == ErrorCode::remote) return true;
  if (error.native().domain != NativeDomain::os_errno) return false;
  switch (error.native().value) {
    case ECONNREFUSED:
    case ECONNRESET:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ETIMEDOUT:
    case EADDRNOTAVAIL:
    case EAGAIN:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool is_refusal(const Error& error) {
  return error.native().domain == NativeDomain::os_errno && error.native().value == ECONNREFUSED;
}

bool is_local_failure(const Error& error) {
  return error.code() == ErrorCode::system && !can_try_again(error);
}

Retries::Decision Retries::after(const Error& error, TimePoint now) {
  Decision decision = Decision::try_again;
  Duration timeout = Duration::max();
  if (is_refusal(error)) {
    decision = Decision::refused;
    timeout = timeouts_.refused;
  } else if (!can_try_again(error)) {
    const bool is_local = is_local_failure(error);
    decision = is_local ? Decision::local : Decision::lasting;
    timeout = is_local ? timeouts_.local : timeouts_.lasting;
  }
  if (decision != last_) {
    last_ = decision;
    since_ = now;
    count_ = 0;
  }
  ++count_;
  const bool has_lasted =
      now - since_ >= timeout && (decision != Decision::refused || count_ >= kAttempts);
  return has_lasted ? decision : Decision::try_again;
}

Duration Retries::pause() {
  return std::exchange(pause_, std::min(pause_ * 2, kLongestPause));
}

}  // namespace oriel::boot
