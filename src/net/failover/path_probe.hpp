// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "oriel/error.hpp"

#include "net/queue/queue_records.hpp"
#include "net/soft/soft_send_queue.hpp"

namespace oriel::net {

/// Queue on one path that posts only writes of 0 bytes; an answer shows that the path works. It
/// retransmits a write without limit, so a late answer shows that the path is back. Not
/// thread-safe, but for answered().
class PathProbe {
 public:
  struct Options {
    NicSoft* nic = nullptr;
    std::uint32_t number = 0;  ///< see SendQueue::Options::number
    std::int32_t peer = -1;
    Duration every{};  ///< see PathPolicy::probe_every
  };
  PathProbe() = default;
  PathProbe(const PathProbe&) = delete;
  PathProbe& operator=(const PathProbe&) = delete;
  Status create(const Options& options);
  std::uint32_t number() const { return queue_->number(); }
  /// Connects the queue. Both ends must be in the same epoch.
  Status connect(std::uint32_t wire, WireAddress address, std::uint32_t queue);

  /// Returns the epoch that was started last, whether or not restart() succeeded.
  std::uint32_t epoch() const { return epoch_; }
  /// Returns the epoch that the queue should have: the later of its own and `peers`, the peer's. If
  /// this queue has failed, returns a new epoch. Asks the NIC for the queue's state every 4 *
  /// Options::every.
  std::uint32_t wanted_epoch(std::uint32_t peers, TimePoint now);
  Status restart(std::uint32_t epoch);

  void send();
  /// Returns whether a probe was sent whose answer take_answer() has not returned.
  bool is_open() const { return is_open_; }
  bool take_answer();
  /// Returns when the latest answered probe was sent. Any thread.
  TimePoint answered() const { return queue_->answered(); }

 private:
  Options options_;
  QueuePeer peer_;
  QueueRecords records_;  // survive a failure of the queue
  std::optional<SendQueue> queue_;
  std::uint32_t epoch_ = 1;
  TimePoint polled_{};  // when the NIC was last asked for the state
  std::uint64_t sent_ = 0;
  bool is_open_ = false;
};

}  // namespace oriel::net
