// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "oriel/device/queue.hpp"
#include "oriel/device/wait.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"

/// Interprets errors of queues, and probes whether a queue's peer is alive.
namespace oriel::comm {

/// Returns the reason in words why a WQE was not executed.
const char* describe_syndrome(std::uint32_t syndrome);

/// Returns in words the check of a software NIC that a WQE failed; "none" for 0.
const char* describe_complaint(std::uint8_t complaint);

/// Returns the name of a WQE's operation, or "unknown".
const char* name_of_operation(std::uint8_t opcode);

/// Returns whether the error says that the peer did not answer.
bool is_timeout(const device::queue::QueueError& error);

/// Returns whether the peer is at fault.
bool is_of_peer(std::uint32_t syndrome);

/// Returns whether either side may be at fault: a peer that leaves deregisters its keys, and its
/// adapter refuses later requests.
bool may_be_of_leaving(std::uint32_t syndrome);

/// Description of a failed queue for to_error().
struct FailedQueue {
  int rank = -1;
  int peer = -1;
  int origin = -1;  ///< rank at fault
  bool peer_has_left = false;
  bool is_probe = false;  ///< the failed WQE is a probe
  device::queue::QueueError error;
  std::string cause;    ///< reason in words
  std::string where{};  ///< detail of the syndrome; for mlx5 also the adapter
  std::string more{};   ///< further facts, as the end of a sentence
};
Error to_error(const FailedQueue& failed);

/// Waits, after a refused request, for the note that the peer has left. The note takes another
/// route than the refusal and may arrive later. Thread-safe.
class LeavingDoubt {
 public:
  /// Maximum wait. The note takes log2(ranks) hops; each rank polls for it at least ten times a
  /// second.
  static constexpr Duration kMost = std::chrono::milliseconds(500);

  /// Returns whether the wait is over: the peer has left, or kMost has passed since the first call.
  bool is_over(bool has_left, TimePoint now);
  /// Resets the wait, when no refusal is left.
  void end();

 private:
  std::mutex mutex_;
  std::optional<TimePoint> since_;
};

/// Waits until all WQEs that this rank has posted are complete or `is_over` returns true. Returns
/// false if the queue failed or the wait was aborted. CPU ranks.
bool wait_all_unless(const device::queue::QueueView& queue, const device::WaitControl& control,
                     const std::function<bool()>& is_over);

/// Records the probes that a network posts to its queues to test whether the peers are alive.
/// Thread-safe.
class QueueProbes {
 public:
  /// Returns whether `interval` has passed since the last call that returned true.
  bool are_due(TimePoint now, Duration interval);
  /// Posts a write of 0 bytes, unless the queue holds a WQE that is as informative. Does not block.
  /// `abort` is the communicator's abort word. CPU ranks.
  void post(const device::queue::QueueView& queue, const std::uint32_t* abort);
  /// Returns whether the error is that of a probe after which nothing was posted, so that no real
  /// request failed. CPU ranks.
  bool is_of_probe(const device::queue::QueueView& queue,
                   const device::queue::QueueError& error) const;

 private:
  mutable std::mutex mutex_;  // guards both members below
  TimePoint last_{};
  std::map<int, std::uint64_t> posted_;  // by peer: index of the last WQE that is a probe
};

}  // namespace oriel::comm
