// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "net/copy/copy_engine.hpp"

namespace oriel::net {

/// Allocation of a copy engine's slots of pinned memory. Tracks the free slots, those that the
/// stream still reads or writes, and those that hold bytes to be sent. Owns numbers only; the
/// stream owns the memory.
///
/// Loaded parts leave slots for received bytes, and kept parts leave slots for other loads, so that
/// bytes always get through. Not thread-safe.
class StagingSlots {
 public:
  explicit StagingSlots(std::uint32_t slots);

  /// Takes a free slot, if there is one. `done` is the ticket up to which the stream is done.
  std::optional<std::uint32_t> take(MoveTicket done);
  /// Frees a slot once the stream is done up to `until`, which must be the latest ticket so far.
  void free_after(MoveTicket until, std::uint32_t slot) { busy_.push_back({until, slot}); }

  /// Returns whether one more slot may be taken for a load.
  bool may_load() const { return loaded_ < loaded_most_; }
  /// Counts a slot that holds a loaded part, until release().
  void note_loaded() { ++loaded_; }
  /// Lets a loaded part stay until its bytes are sent, if that leaves room for others. Returns
  /// whether it may.
  bool keep(StagedPart& part);
  /// Frees the slot of a loaded part, at once if `done` covers its ticket.
  void release(const StagedPart& part, MoveTicket done);

 private:
  struct Busy {
    MoveTicket until;
    std::uint32_t slot;
  };

  const std::uint32_t loaded_most_;
  const std::uint32_t kept_most_;
  std::uint32_t loaded_ = 0;
  std::uint32_t kept_ = 0;
  std::vector<std::uint32_t> free_;
  std::deque<Busy> busy_;  // in the order of tickets
};

}  // namespace oriel::net
