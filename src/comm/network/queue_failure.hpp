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

/// Interprets errors of queues, and probes whether a queue's peer is there.
namespace oriel::comm {

/// Returns in words why an entry was not executed.
const char* describe_syndrome(std::uint32_t syndrome);

/// Returns whether the error says that the peer did not answer.
bool is_silence(const device::queue::QueueError& error);

/// Returns whether the fault is the peer's.
bool is_of_peer(std::uint32_t syndrome);

/// Returns whether the fault may be the peer's or this rank's: a peer that leaves deregisters its
/// keys, and its adapter refuses what comes later.
bool may_be_of_leaving(std::uint32_t syndrome);

/// A failed queue, for the error that names it.
struct FailedQueue {
  int rank = -1;
  int peer = -1;
  int origin = -1;  ///< whose fault it is
  bool peer_has_left = false;
  bool is_probe = false;  ///< what failed is a question whether the peer is there
  device::queue::QueueError error;
  std::string cause;    ///< in words
  std::string where{};  ///< the adapter, if it is one
  std::string more{};   ///< what else is known, as the end of a sentence
};
Error to_error(const FailedQueue& failed);

/// A refusal that may be a peer's that leaves: the note that it does goes by another way than the
/// refusal has come, and may be later. Thread-safe.
class LeavingDoubt {
 public:
  /// The note takes log2(ranks) hops, by ranks that look at it ten times a second at least.
  static constexpr Duration kMost = std::chrono::milliseconds(500);

  /// Returns whether it is known whose fault the refusal is.
  bool is_over(bool has_left, TimePoint now);
  /// There is no refusal (any more).
  void end();

 private:
  std::mutex mutex_;
  std::optional<TimePoint> since_;
};

/// Waits until all that this rank has posted is complete, or until `is_over`; false if neither was
/// to be had. CPU ranks.
bool wait_all_unless(const device::queue::QueueView& queue, const device::WaitControl& control,
                     const std::function<bool()>& is_over);

/// Probes that a network has posted to its queues to find out whether the peers are there.
/// Thread-safe.
class QueueProbes {
 public:
  /// Returns whether `interval` has passed since it last returned true.
  bool are_due(TimePoint now, Duration interval);
  /// Posts a write of no bytes, unless there is something else under way that will tell as much.
  /// Does not wait. `abort` is the communicator's word. CPU ranks.
  void post(const device::queue::QueueView& queue, const std::uint32_t* abort);
  /// Returns whether the error is that of a probe behind which nothing was posted: nothing that was
  /// asked for has failed. CPU ranks.
  bool is_of_probe(const device::queue::QueueView& queue,
                   const device::queue::QueueError& error) const;

 private:
  mutable std::mutex mutex_;  // of both
  TimePoint last_{};
  std::map<int, std::uint64_t> posted_;  // by peer, the index of the last entry that is a probe
};

}  // namespace oriel::comm
