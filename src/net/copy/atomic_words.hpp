// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "net/copy/copy_engine.hpp"

namespace oriel::net {

/// Cache of the words on which atomic operations of a copy engine work. Holds the values of words
/// that nobody else changes, and the words that are being read. A clock orders reads and changes.
/// Owns copies of values, not the words. Places are addresses, multiples of 8. Not thread-safe.
class AtomicWords {
 public:
  /// Returns the word's value, or null if it is not cached. Valid until drop() or forget().
  std::uint64_t* find(std::uint64_t place);
  /// Adds the value of a word that is not cached.
  std::uint64_t* add(std::uint64_t place, std::uint64_t value);
  /// Drops the value, because others may change the word.
  void drop(std::uint64_t place) { values_.erase(place); }

  /// Notes that the move has started to read the word.
  void begin_reading(AtomicMove& move, std::uint64_t place);
  /// Frees the part that the move has read. Returns false if the word was changed since
  /// begin_reading().
  bool end_reading(AtomicMove& move, std::uint64_t place);
  /// Notes that the word has been changed, so that moves that are reading it read again.
  void note_change(std::uint64_t place);

  /// Drops the words in [at, at + count), because others may change them.
  void forget(const std::byte* at, std::size_t count);

 private:
  /// Word that atomic operations are reading, perhaps those of several queues.
  struct Reading {
    int readers = 0;
    std::uint64_t changed_at = 0;
  };
  std::map<std::uint64_t, std::uint64_t> values_;
  std::map<std::uint64_t, Reading> readings_;
  std::uint64_t clock_ = 0;  // counts reads and changes of words that are being read
};

}  // namespace oriel::net
