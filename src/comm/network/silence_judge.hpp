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

/// A rank of another team, as it was seen at one moment: whether it has left, and what its queue
/// says, may change between two looks, so that whoever decides something takes one.
struct PeerSight {
  std::size_t host = 0;
  bool has_left = false;
  TimePoint answered{};  ///< when the latest was sent of what it has answered
  /// Of its queue; not that of a probe if it has left and was asked for nothing else.
  std::optional<device::queue::QueueError> error;
};

/// Which failed queue is to be named, and who of its two ends is at fault where the peer is silent:
/// for that, it is waited for what the ranks of other hosts answer (boot/auth/cut_off.hpp). Where
/// it has refused something, it is waited for the note that it has left. Thread-safe.
class SilenceJudge {
 public:
  struct Verdict {
    std::size_t peer = 0;  ///< its place among the sights
    boot::CutOff who = boot::CutOff::peer;
  };

  /// Nothing while no queue has failed, or it is not told yet. `silence` is the time after which a
  /// queue fails that has no answer. Who has not answered late_after() the first look at a queue
  /// that is silent is taken for silent too; not so who has answered what was asked in the time
  /// in which that queue did not: it has as long as any queue.
  std::optional<Verdict> judge(std::span<const PeerSight> peers, std::size_t own_host,
                               TimePoint now, Duration silence);
  /// A quarter of it, but no less than a busy machine may take.
  static Duration late_after(Duration silence);
  /// No queue has failed. Nobody waits for a verdict that does not come any more.
  void end_doubt();
  /// Whether a later call of judge() will say who is at fault in a queue that is silent or refused.
  /// Until then all peers have to be asked again and again.
  bool is_in_doubt() const { return is_in_doubt_; }

 private:
  LeavingDoubt leaving_;
  std::mutex mutex_;  // of the next two
  std::optional<TimePoint> doubted_since_;
  boot::CutOff who_ = boot::CutOff::undecided;
  std::atomic<bool> is_in_doubt_{false};
};

}  // namespace oriel::comm
