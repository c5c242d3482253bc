// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "oriel/device/queue.hpp"
#include "oriel/device/wait.hpp"

#include "base/deadline.hpp"

/// What an error of a queue says, and how a queue's peer is asked whether it is there.
namespace oriel::comm {

/// In words, why an entry was not executed.
const char* describe_syndrome(std::uint32_t syndrome);

/// Whether the fault is the peer's.
bool is_of_peer(std::uint32_t syndrome);

/// Whether it may be the peer's fault or this rank's: a peer that leaves gives its keys back, and
/// its adapter refuses what comes later.
bool may_be_of_leaving(std::uint32_t syndrome);

/// What is said of a queue of `rank` that has failed: `how` is the cause.
std::string describe_failure(int rank, int peer, bool peer_has_left, const std::string& how);

/// A refusal that may be a peer's that leaves: the note that it does goes by another way than the
/// refusal has come, and may be later. Not thread-safe.
class LeavingDoubt {
 public:
  /// The note takes log2(ranks) hops, by ranks that look at it ten times a second at least.
  static constexpr Duration kMost = std::chrono::milliseconds(500);

  /// Whether it is told whose fault the refusal is.
  bool is_over(bool has_left, TimePoint now);
  /// There is no refusal (any more).
  void end() { since_.reset(); }

 private:
  std::optional<TimePoint> since_;
};

/// Waits until all that this rank has posted is complete, or until `is_over`; false if neither was
/// to be had. CPU ranks.
bool wait_all_unless(const device::queue::QueueView& queue, const device::WaitControl& control,
                     const std::function<bool()>& is_over);

/// Posts a write of no bytes, unless there is something else under way that will tell as much. Its
/// index, if it was posted. CPU ranks: any thread, does not wait. `abort` is the
/// communicator's word.
std::optional<std::uint64_t> post_probe(const device::queue::QueueView& queue,
                                        const std::uint32_t* abort);

/// Whether the error is that of the entry that post_probe() has posted at `probe`, and nothing was
/// posted behind it, so that nobody has asked for anything that failed. CPU ranks.
bool is_of_lone_probe(const device::queue::QueueView& queue, std::uint64_t probe,
                      const device::queue::QueueError& error);

}  // namespace oriel::comm
