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

/// The error that ends a rendezvous, and whom it has reached. Owns the error and the ranks that
/// have it; all have it once as many ranks do as the largest size that any rank named.
class RendezvousFailure {
 public:
  /// Null while nothing has failed.
  const Error* error() const { return error_ ? &*error_ : nullptr; }
  void set(Error error) { error_ = std::move(error); }

  /// Notes the size that a rank has named.
  void note_size(int size) { largest_size_ = std::max(largest_size_, size); }
  /// Notes that two callers have one number, so that ranks cannot be counted.
  void note_duplicate() { countable_ = false; }
  /// Notes that the error is sent to a rank, or to a caller whose rank is not known (-1).
  void note_told(int rank) {
    if (rank >= 0) told_.insert(rank);
  }
  /// Returns whether all ranks have the error. False where they cannot be counted.
  bool has_reached_all() const { return countable_ && std::ssize(told_) >= largest_size_; }

 private:
  std::optional<Error> error_;
  std::set<int> told_;
  int largest_size_ = 0;
  bool countable_ = true;
};

}  // namespace oriel::boot
