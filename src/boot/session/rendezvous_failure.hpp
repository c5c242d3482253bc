// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "oriel/error.hpp"

namespace oriel::boot {

/// Error that ends a rendezvous, and the ranks that have received it. All ranks have it once their
/// number reaches the largest size that any rank named.
class RendezvousFailure {
 public:
  /// Null while nothing has failed.
  const Error* error() const { return error_ ? &*error_ : nullptr; }
  void set(Error error) { error_ = std::move(error); }

  /// Records the size that a rank has named.
  void note_size(int size) { largest_size_ = std::max(largest_size_, size); }
  /// Records that two callers have the same rank, so ranks cannot be counted.
  void note_duplicate() { countable_ = false; }
  /// Records that the error was sent to a rank; -1 for a caller of unknown rank.
  void note_notified(int rank) {
    if (rank >= 0) notified_.insert(rank);
  }
  /// Returns whether all ranks have the error; false if they cannot be counted.
  bool has_reached_all() const { return countable_ && std::ssize(notified_) >= largest_size_; }

 private:
  std::optional<Error> error_;
  std::set<int> notified_;
  int largest_size_ = 0;
  bool countable_ = true;
};

}  // namespace oriel::boot
