// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "oriel/error.hpp"
#include "window/memory.hpp"

namespace oriel::window {

/// One member of an LSA team as far as addresses go: two communicators whose teams are the same list
/// share one reservation.
struct TeamMember {
  std::uint64_t process = 0;  ///< the random number of its process
  std::int32_t device = -1;   ///< its CUDA device ordinal, or -1
  auto operator<=>(const TeamMember&) const = default;
};

/// Which offsets of the slots are taken on this rank's side. All slots of one reservation have the
/// same layout, so one set of intervals serves them all. Thread-safe.
///
/// Offsets are agreed by a fixed point: every rank proposes the first place that is free on its side
/// at or after a floor, all take the largest proposal as the next floor, and once all proposals are
/// equal the place is free everywhere. Only local truth is needed, so ranks may release in any
/// order. A proposal is held for its token until it is moved, kept or dropped, so that two
/// agreements that run at once on one process do not get the same place; ranks of one process that
/// share the space propose for one token and get one hold.
class SlotSpace {
 public:
  SlotSpace(std::size_t slot_bytes, std::size_t granularity);

  /// Names one agreement: equal on all ranks that take part in it.
  struct Token {
    std::uint64_t communicator = 0;
    std::uint64_t sequence = 0;
    auto operator<=>(const Token&) const = default;
  };

  /// Holds the first free `bytes` at or after `floor` for `token`, in place of what it held before.
  Result<std::size_t> propose(Token token, std::size_t bytes, std::size_t floor);
  /// Turns the hold into a taken range, counted once for each caller; release() each.
  Status keep(Token token);
  /// Drops the hold; no effect if it was kept or never made.
  void drop(Token token);
  /// Gives back [offset, offset + bytes) of a kept range: all of it or a part.
  void release(std::size_t offset, std::size_t bytes);

  std::size_t slot_bytes() const { return slot_bytes_; }
  std::size_t taken_bytes() const;

 private:
  std::size_t slot_bytes_;
  std::size_t granularity_;
};

/// The flat range of one LSA team in this process: team size x slot bytes of reserved addresses.
/// One for all communicators of the process with the same device and ordered team; it goes when the
/// last of them and the last mapping in it have gone. Thread-safe.
class FlatSpace {
 public:
  /// Finds the reservation of this process for (memory's device, team), or makes it.
  static Result<std::shared_ptr<FlatSpace>> acquire(Memory& memory, std::vector<TeamMember> team,
                                                    std::size_t slot_bytes);

  std::byte* base() const;
  std::size_t slot_bytes() const;
  int team_size() const;
  SlotSpace& slots();

  /// Maps `allocation` into `slot` at `offset`, or counts once more the mapping of the same
  /// allocation that is already there (ranks of one process and communicators with one team meet
  /// here). Destroying the last holder unmaps.
  Result<std::shared_ptr<Mapping>> map(int slot, std::size_t offset, AllocationRef allocation);
};

}  // namespace oriel::window
