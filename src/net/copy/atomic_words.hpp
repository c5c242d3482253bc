// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "net/copy/data_mover.hpp"

namespace oriel::net {

/// What a copy engine knows of the words that atomic operations work on: the values of those that
/// nobody else changes, and which words are being read, with a clock that orders reads and changes.
/// Owns copies of values, none of the words. Places are addresses, multiples of 8. Not thread-safe.
class AtomicWords {
 public:
  /// Returns the word's value, or null if it is not known. Valid until the word is forgotten.
  std::uint64_t* find(std::uint64_t place);
  /// Adds the value of a word that is not known.
  std::uint64_t* add(std::uint64_t place, std::uint64_t value);
  /// Drops the value, as others may change the word.
  void drop(std::uint64_t place) { values_.erase(place); }

  /// Notes that a move has begun to read the word.
  void begin_reading(AtomicMove& move, std::uint64_t place);
  /// Frees the part that the move has read. Returns whether the word has not been changed since
  /// the reading began.
  bool end_reading(AtomicMove& move, std::uint64_t place);
  /// Notes that the word has been changed, for those who are reading it.
  void note_change(std::uint64_t place);

  /// Forgets the words in [at, at + count): somebody else may change them.
  void forget(const std::byte* at, std::size_t count);

 private:
  /// A word that atomic operations are reading, of several queues perhaps.
  struct Reading {
    int readers = 0;
    std::uint64_t changed_at = 0;
  };
  std::map<std::uint64_t, std::uint64_t> values_;
  std::map<std::uint64_t, Reading> readings_;
  std::uint64_t clock_ = 0;  // counts reads and changes of words that are being read
};

}  // namespace oriel::net
