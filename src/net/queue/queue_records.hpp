// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "net/queue/completion_writer.hpp"
#include "net/queue/delivery_record.hpp"
#include "net/queue/syndrome.hpp"

namespace oriel::net {

/// State of a queue that outlives its NIC, so that another NIC can continue with the queue. The
/// rest of the state is in ring, doorbell record and doorbell. The rank owns the records. The
/// queues of all its paths share them, and at most one of these is neither reset nor in error. The
/// lock of that queue's NIC guards the records: others read them through NicSoft::report().
struct QueueRecords {
  /// Everything before this WQEBB is complete, and may have been overwritten.
  std::uint64_t completed = 0;
  /// Number of the first request of the WQE at `completed`.
  std::uint64_t number = 0;
  /// One past the last request that any NIC has sent: earlier requests may have been executed.
  std::uint64_t sent = 0;
  DeliveryRecord delivery;
  /// Error of the queue in use. It is not reported to producers.
  std::optional<CompletionRecord> error;
  /// Syndrome with which this side refused a request of the peer.
  Syndrome refused = Syndrome::none;
};

}  // namespace oriel::net
