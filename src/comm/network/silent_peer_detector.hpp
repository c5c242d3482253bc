// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>

#include "oriel/device/queue.hpp"

#include "base/deadline.hpp"
#include "boot/auth/cut_off.hpp"
#include "comm/network/queue_failure.hpp"

namespace oriel::comm {

/// Snapshot of a rank of another team. Its state may change between two reads, so one decision uses
/// one snapshot.
struct PeerState {
  std::size_t host = 0;
  bool has_left = false;
  TimePoint answered{};  ///< time at which the latest answered request was sent
  /// Error of its queue; empty if the rank has left and only a probe failed.
  std::optional<device::queue::QueueError> error;
};

/// Decides which failed queue to report, and, if the peer is silent, which end is at fault. For a
/// silent peer it waits for the answers of ranks of other hosts (boot/auth/cut_off.hpp). For a
/// refused request it waits for the note that the peer has left. Thread-safe.
class SilentPeerDetector {
 public:
  struct Finding {
    std::size_t peer = 0;  ///< index in `peers`
    boot::CutOff who = boot::CutOff::peer;
  };

  /// Returns empty while no queue has failed or the decision is pending. `peer_timeout` is the time
  /// after which an unanswered queue fails. If a rank has not answered late_after() the first poll
  /// of a silent queue, it counts as silent. Exempt is a rank that has answered a request sent
  /// within `peer_timeout` before that poll: it has the full `peer_timeout` to answer.
  std::optional<Finding> detect(std::span<const PeerState> peers, std::size_t own_host,
                                TimePoint now, Duration peer_timeout);
  /// Returns a quarter of `peer_timeout`, but at least min(peer_timeout, 1.5 s), which a busy
  /// machine may take.
  static Duration late_after(Duration peer_timeout);
  /// Ends a pending decision, when no queue has failed.
  void end_doubt();
  /// Returns whether a later call of detect() will decide about a silent or refused queue. Until
  /// then all peers must be probed repeatedly.
  bool is_in_doubt() const { return is_in_doubt_; }

 private:
  LeavingDoubt leaving_;
  std::mutex mutex_;  // guards the next two members
  std::optional<TimePoint> doubted_since_;
  boot::CutOff who_ = boot::CutOff::undecided;
  std::atomic<bool> is_in_doubt_{false};
};

}  // namespace oriel::comm
