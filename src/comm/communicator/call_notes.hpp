// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "kernels/plan/call_record.hpp"

namespace oriel::comm {

/// How many sends and receives one exchange carries.
struct PointToPointCounts {
  std::uint32_t sends = 0;
  std::uint32_t receives = 0;
};

/// Notes which call a rank is in, for messages about waits that last. One thread at a time makes
/// calls; any thread may ask.
class CallNotes {
 public:
  /// CPU ranks: the calling thread begins or ends a call. A collective is named by its CallRecord.
  void enter_collective() { now_.store(kCollective, std::memory_order_relaxed); }
  void enter(PointToPointCounts counts);
  void leave() { now_.store(0, std::memory_order_relaxed); }

  bool is_in_collective() const { return now_.load(std::memory_order_relaxed) == kCollective; }
  bool is_in_point_to_point() const {
    const std::uint64_t now = now_.load(std::memory_order_relaxed);
    return now != 0 && now != kCollective;
  }
  /// Names the sends and receives that the thread is in; empty if it is in none.
  std::string point_to_point_text() const;

  /// GPU ranks: a call has been enqueued.
  void note_enqueued(const kernels::CollectiveCall& call);
  void note_enqueued(PointToPointCounts counts);
  /// Returns "number 3, is an all-reduce ..." for the call that was enqueued last; empty before the
  /// first.
  std::string enqueued_text() const;

 private:
  static constexpr std::uint64_t kCollective = ~std::uint64_t{0};

  std::atomic<std::uint64_t> now_{0};  // 0, kCollective, or sends << 32 | receives
  mutable std::mutex mutex_;
  std::uint64_t enqueued_ = 0;
  bool last_is_collective_ = false;
  kernels::CollectiveCall last_collective_;
  PointToPointCounts last_counts_;
};

}  // namespace oriel::comm
