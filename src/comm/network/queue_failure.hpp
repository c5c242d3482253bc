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

/// What an error of a queue says, and how a queue's peer is asked whether it is there.
namespace oriel::comm {

/// In words, why an entry was not executed.
const char* describe_syndrome(std::uint32_t syndrome);

/// Whether the error says that the peer did not answer.
bool is_silence(const device::queue::QueueError& error);

/// Whether the fault is the peer's.
bool is_of_peer(std::uint32_t syndrome);

/// Whether it may be the peer's fault or this rank's: a peer that leaves gives its keys back, and
/// its adapter refuses what comes later.
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

  /// Whether it is told whose fault the refusal is.
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

/// What a network has asked its peers to find out whether they are there, by entries of its queues.
/// Thread-safe.
class QueueProbes {
 public:
  /// Whether the last time that it was so is `interval` ago.
  bool are_due(TimePoint now, Duration interval);
  /// Posts a write of no bytes, unless there is something else under way that will tell as much.
  /// Does not wait. `abort` is the communicator's word. CPU ranks.
  void post(const device::queue::QueueView& queue, const std::uint32_t* abort);
  /// Whether the error is that of a probe, and nothing was posted behind it, so that nobody has
  /// asked for anything that failed. CPU ranks.
  bool is_of_probe(const device::queue::QueueView& queue,
                   const device::queue::QueueError& error) const;

 private:
  mutable std::mutex mutex_;  // of both
  TimePoint last_{};
  std::map<int, std::uint64_t> posted_;  // by peer, the index of the last entry that is a probe
};

}  // namespace oriel::comm
