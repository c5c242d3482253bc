// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "comm/network/peer_queue.hpp"
#include "net/soft/nic_thread.hpp"

namespace oriel::comm {

/// Drives the queues of a rank that have backup paths, and the NICs of those paths: looks at the
/// queues every few milliseconds, and has a thread of its own for when nobody else is awake.
/// Thread safety: any thread, but for start() and stop().
class FailoverDriver {
 public:
  /// Both outlive this.
  FailoverDriver(const QueueParts& parts, std::vector<PeerQueue>& queues)
      : parts_(parts), queues_(queues) {}

  /// Starts the thread, which calls `look`.
  Status start(std::function<bool()> look);
  void stop() { thread_.reset(); }
  /// Drives the NICs behind the first one that are in use, and looks at the queues if it is time.
  bool progress();
  /// Looks at all queues. Whether there was anything to do; false if another thread is at it.
  bool look();
  bool is_in_use(std::size_t nic) const {
    return (nics_in_use_.load(std::memory_order_relaxed) >> nic & 1) != 0;
  }
  /// NICs send nothing any more, so that paths would seem to have failed: changes none from now on.
  void end() { is_over_ = true; }

 private:
  void tell_paths() const;

  const QueueParts& parts_;
  std::vector<PeerQueue>& queues_;
  std::mutex mutex_;                    // held by whoever looks
  std::atomic<TimePoint> next_look_{};  // when the queues are to be looked at
  std::atomic<bool> is_settled_{true};  // no ends are about to agree
  std::atomic<net::PathMask> nics_in_use_{1};
  std::atomic<bool> is_over_{false};
  std::optional<net::NicThread> thread_;
};

}  // namespace oriel::comm
