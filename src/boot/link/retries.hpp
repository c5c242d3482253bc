// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/error.hpp"

#include "base/deadline.hpp"

namespace oriel::boot {

/// Returns whether `error` is ECONNREFUSED: nobody listens at the address.
bool is_refusal(const Error& error);
/// Returns whether `error` comes from a system call of this host, not from the network or the peer.
bool is_local_failure(const Error& error);

/// Decides whether to retry after a failed attempt. Gives up once the same kind of failure has
/// lasted for its timeout in `timeouts`. A connection that is closed or reset is retried without
/// limit: an overloaded listener closes honest connections too.
class Retries {
 public:
  struct Timeouts {
    Duration refused = Duration::max();  ///< nobody listens, in eight attempts at least
    Duration local{};                    ///< a system call of this host fails
    Duration lasting{};                  ///< another attempt will hardly help
  };
  enum class Decision : std::uint8_t { try_again, refused, local, lasting };

  explicit Retries(const Timeouts& timeouts) : timeouts_(timeouts) {}
  Decision after(const Error& error, TimePoint now);
  /// Returns the pause before the next attempt. Pauses double up to kLongestPause.
  Duration pause();
  /// Forgets all failures after a success.
  void succeeded() { *this = Retries(timeouts_); }

  /// Retries a call at once, up to four times in all. Meant for calls that cannot be repeated
  /// later.
  template <typename Call>
  static auto at_once(const Call& call) {
    constexpr int kCalls = 4;
    auto result = call();
    for (int i = 1; i < kCalls && !result.ok(); ++i) result = call();
    return result;
  }

 private:
  static constexpr int kAttempts = 8;
  static constexpr Duration kLongestPause = std::chrono::milliseconds(100);
  Timeouts timeouts_;
  Decision last_ = Decision::try_again;  // kind of the last failure
  TimePoint since_;
  int count_ = 0;
  Duration pause_ = std::chrono::milliseconds(2);
};

}  // namespace oriel::boot
