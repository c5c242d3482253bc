// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

namespace oriel::net {

/// What the receiving half of a queue has done of what its peer asked for, by the numbers of
/// requests. It is kept apart from the queue so that it outlives the NIC: another one that takes
/// the queue over goes on with it, and nothing is done twice or left out.
///
/// A request is accepted, in the order of numbers, and executed at once or later. When a NIC takes
/// over, entries that were accepted and not executed wholly are owed: the peer will ask for them
/// again, and until all of them have come nothing behind them is accepted. Of such an entry all
/// pieces are done again, for the peer may send them in another order; an atomic has but one.
/// Not thread-safe: the lock of the NIC that has the queue guards it.
class DeliveryRecord {
 public:
  /// Old values that are kept: more than a peer can have asked for without knowing the answer,
  /// also one that has lost what it knew of 64 entries.
  static constexpr std::size_t kValuesMost = 256;

  explicit DeliveryRecord(std::size_t values_most = kValuesMost) : values_most_(values_most) {}

  /// The number of the next request. All before it were accepted, by this NIC or an earlier one.
  std::uint64_t expected() const { return owed_.empty() ? next_ : owed_next_; }
  /// Accepts request expected(): `piece_bytes` of an entry of `entry_bytes`.
  void accept(std::uint64_t entry_bytes, std::uint64_t piece_bytes);
  /// An accepted request has had its effect.
  void executed(std::uint64_t number);
  /// The same for an atomic, whose answer cannot be found again in memory.
  void executed(std::uint64_t number, std::uint64_t old_value);
  std::optional<std::uint64_t> old_value(std::uint64_t number) const;

  /// Another NIC takes the queue over: what is on its way with the old one never arrives.
  void hand_over();

  /// Receives used up, and hence completions that the peer's immediates have had.
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

  bool is_pending(const Span& entry) const;

  std::uint64_t next_ = 0;        // that no NIC has accepted
  std::uint64_t entry_left_ = 0;  // bytes of the entry before it that have not been accepted
  std::deque<Span> owed_;         // entries that have to come again, ascending
  std::uint64_t owed_next_ = 0;   // request in the first of them
  std::deque<Span> entries_;      // that this NIC has accepted, from that of pending_.front() on
  std::deque<std::uint64_t> pending_;  // accepted by it and not executed, ascending
  std::size_t values_most_;
  std::deque<Value> values_;
};

}  // namespace oriel::net
