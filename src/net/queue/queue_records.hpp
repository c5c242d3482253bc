// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "net/queue/completion_writer.hpp"
#include "net/queue/delivery_record.hpp"
#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// What of a queue has to outlive the NIC that it is on, so that another NIC can go on with it; the
/// rest of what a queue is lies in its ring, record and doorbell. Owned by the rank; the queues of
/// all its paths have the same one, of which one at a time is neither reset nor in error.
/// The lock of that queue's NIC guards it: others read it through NicSoft::report().
struct QueueRecords {
  /// Everything before this block is complete, and may have been overwritten.
  std::uint64_t completed = 0;
  /// Of the first request of the entry there.
  std::uint64_t number = 0;
  /// One past the last request that any NIC has sent: those before it may have been done.
  std::uint64_t sent = 0;
  DeliveryRecord delivery;
  /// Why the queue in use has failed. Producers are not told.
  std::optional<CompletionRecord> error;
  /// What the peer was told when this side would not do what it asked for.
  Syndrome refused = Syndrome::none;
};

}  // namespace oriel::net
