// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace oriel::net {

/// Records which of the peer's requests the receiving half of a queue has executed, by request
/// number. The record is separate from the queue, so that it outlives the NIC. Another NIC that
/// takes the queue over continues with the record. It leaves nothing out, and repeats no atomic and
/// no write that was executed wholly.
///
/// Requests are accepted in the order of their numbers, and executed at once or later. When a NIC
/// takes over, WQEs that were accepted but not wholly executed are owed: the peer will send them
/// again. Nothing behind them is accepted before all of them have come. All pieces of an owed WQE
/// are executed again, because the peer sends the whole WQE again. An atomic has only
/// one piece. Not thread-safe: the lock of the NIC that has the queue guards it.
class DeliveryRecord {
 public:
  /// Number of old values that are kept. It exceeds what a peer can have requested without knowing
  /// the answer. That includes a peer that lost its knowledge of 64 WQEs.
  static constexpr std::size_t kValuesMost = 256;

  explicit DeliveryRecord(std::size_t values_most = kValuesMost) : values_most_(values_most) {}

  /// Returns the number of the next request. This NIC or an earlier one has accepted all requests
  /// before it.
  std::uint64_t expected() const { return owed_.empty() ? next_ : owed_next_; }
  /// Accepts request expected(): `piece_bytes` of a WQE of `wqe_bytes`.
  void accept(std::uint64_t wqe_bytes, std::uint64_t piece_bytes);
  /// Notes that an accepted request has taken effect.
  void executed(std::uint64_t number);
  /// Notes that an atomic has taken effect. Keeps its old value, because memory no longer has it.
  void executed(std::uint64_t number, std::uint64_t old_value);
  std::optional<std::uint64_t> old_value(std::uint64_t number) const;

  /// Prepares for the NIC that takes the queue over: requests in flight at the old NIC never
  /// arrive.
  void hand_over();

  /// Counts receives used up, which is also the number of completions for the peer's immediates.
  std::uint64_t received = 0;

 private:
  struct Span {
    std::uint64_t first;
    std::uint64_t end;
  };
  struct Value {
    std::uint64_t number;
    std::uint64_t old_value;
  };

  bool is_pending(const Span& wqe) const;

  std::uint64_t next_ = 0;             // first request that no NIC has accepted
  std::uint64_t wqe_left_ = 0;         // bytes of the last accepted WQE that are not accepted yet
  std::deque<Span> owed_;              // WQEs that have to be sent again, ascending
  std::uint64_t owed_next_ = 0;        // next request in the first of owed_
  std::deque<Span> wqes_;              // accepted by this NIC, from the WQE of pending_.front() on
  std::deque<std::uint64_t> pending_;  // accepted by this NIC but not executed, ascending
  std::size_t values_most_;
  std::deque<Value> values_;
};

}  // namespace oriel::net
