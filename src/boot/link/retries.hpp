// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/error.hpp"

#include "base/deadline.hpp"

namespace oriel::boot {

/// Returns whether `error` says that nobody listens at the address.
bool is_refusal(const Error& error);
/// Returns whether `error` comes from a call of this host, not from the network or the peer.
bool is_local_failure(const Error& error);

/// Decides what follows a failed attempt: another one after a pause, or the end. The end comes when
/// the same kind of failure has lasted for as long as `patience` says. A connection that is closed
/// or reset counts as bad luck, however often: a listener in a crush closes honest connections too.
class Retries {
 public:
  struct Patience {
    Duration refused = Duration::max();  ///< nobody listens, also not in eight attempts
    Duration local{};                    ///< a call of this host fails, however often
    Duration lasting{};                  ///< what another attempt will hardly change
  };
  enum class Verdict : std::uint8_t { try_again, refused, local, lasting };

  explicit Retries(const Patience& patience) : patience_(patience) {}
  Verdict after(const Error& error, TimePoint now);
  /// The pause before the next attempt; each is longer than the one before, up to a limit.
  Duration pause();
  /// Forgets all failures: an attempt has succeeded.
  void succeeded() { *this = Retries(patience_); }

  /// For a call that cannot be made again later: makes it at once until it succeeds, a few times.
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
  Patience patience_;
  Verdict last_ = Verdict::try_again;  // what the last attempt would end in
  TimePoint since_;
  int count_ = 0;
  Duration pause_ = std::chrono::milliseconds(2);
};

}  // namespace oriel::boot
