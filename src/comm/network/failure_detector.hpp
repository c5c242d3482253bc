// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "oriel/device/doorbell.hpp"
#include "oriel/device/queue.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "boot/auth/cut_off.hpp"
#include "comm/network/peer_queue.hpp"
#include "comm/network/queue_failure.hpp"
#include "comm/network/silent_peer_detector.hpp"

namespace oriel::comm {

/// Detects failures of the queues of a rank with software NICs: probes the peers, and names the
/// rank at fault.
/// Thread safety: any thread, once the queues exist.
class FailureDetector {
 public:
  /// `parts` and `queues` outlive this.
  FailureDetector(const QueueParts& parts, std::vector<PeerQueue>& queues)
      : parts_(parts), queues_(queues) {}

  /// Implements Network::failure() and probe(). `doorbell` wakes the NIC's thread.
  std::optional<Error> failure(TimePoint now, device::Doorbell& doorbell,
                               const std::uint32_t* abort);
  void probe(TimePoint now, device::Doorbell& doorbell, const std::uint32_t* abort);
  bool is_in_doubt() const { return detector_.is_in_doubt(); }
  /// Sends the due probes of probe() and failure(). Called by the thread that drives the NICs,
  /// since their locks may be held while a GPU copies.
  void send_due_probes();

 private:
  void ask_all(TimePoint now, Duration interval, device::Doorbell& doorbell,
               const std::uint32_t* abort);
  bool is_of_probe(const PeerQueue& queue, const device::queue::QueueError& error) const;
  PeerState state_of(const PeerQueue& queue) const;
  Error queue_failure(const PeerQueue& queue, const device::queue::QueueError& error,
                      boot::CutOff who) const;

  const QueueParts& parts_;
  std::vector<PeerQueue>& queues_;
  SilentPeerDetector detector_;
  QueueProbes probes_;  // probes of queues with backups; other probes are not in the queue
  std::atomic<bool> are_due_{false};
};

}  // namespace oriel::comm
