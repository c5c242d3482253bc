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

/// Drives the queues of a rank that have backup paths, and the NICs of those paths. Polls the
/// queues every few milliseconds. Has its own thread, for when no other thread is awake.
/// Thread safety: any thread, except start() and stop().
class FailoverDriver {
 public:
  /// `parts` and `queues` outlive this.
  FailoverDriver(const QueueParts& parts, std::vector<PeerQueue>& queues)
      : parts_(parts), queues_(queues) {}

  /// Starts the thread, which calls `poll` repeatedly.
  Status start(std::function<bool()> poll);
  void stop() { thread_.reset(); }
  /// Drives the NICs in use other than the first, and polls the queues if that is due. Returns
  /// whether there was anything to do.
  bool progress();
  /// Polls all queues. Returns whether there was anything to do; false if another thread is
  /// polling.
  bool poll();
  bool is_in_use(std::size_t nic) const {
    return (nics_in_use_.load(std::memory_order_relaxed) >> nic & 1) != 0;
  }
  /// Stops all path changes. Called before the NICs stop sending: paths would then seem
  /// to have failed.
  void end() { is_over_ = true; }

 private:
  void log_paths() const;

  const QueueParts& parts_;
  std::vector<PeerQueue>& queues_;
  std::mutex mutex_;                    // held by the polling thread
  std::atomic<TimePoint> next_poll_{};  // time of the next poll
  std::atomic<bool> is_settled_{true};  // no queue's ends are negotiating a path
  std::atomic<net::PathMask> nics_in_use_{1};
  std::atomic<bool> is_over_{false};
  std::optional<net::NicThread> thread_;
};

}  // namespace oriel::comm
