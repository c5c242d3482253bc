// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "oriel/error.hpp"

#include "window/memory.hpp"

namespace oriel::window {

/// One member of an LSA team as far as addresses go: two communicators whose teams are the same
/// list share one reservation.
struct TeamMember {
  std::uint64_t process = 0;  ///< the random number of its process
  std::int32_t device = -1;   ///< its CUDA device ordinal, or -1
  auto operator<=>(const TeamMember&) const = default;
};

/// Which offsets of the slots are taken on this rank's side. All slots of one reservation have the
/// same layout, so one set of intervals serves them all. Thread-safe.
///
/// Offsets are agreed by a fixed point: every rank proposes the first place that is free on its
/// side at or after a floor, all take the largest proposal as the next floor, and once all
/// proposals are equal the place is free everywhere. Only local truth is needed, so ranks may
/// release in any order. A proposal is held for its token until it is moved, kept or dropped, so
/// that two agreements that run at once on one process do not get the same place; ranks of one
/// process that share the space propose for one token and get one hold.
///
/// Places are multiples of `granularity`, and of 2 MiB for `bytes` of 2 MiB or more, so that the
/// host can map huge pages. A range that several ranks keep is counted; a rank that gives up
/// releases or drops only after the outcome round of the agreement, when the others have called
/// keep().
class SlotSpace {
 public:
  /// `granularity` is a power of two and divides `slot_bytes`.
  SlotSpace(std::size_t slot_bytes, std::size_t granularity);

  /// Names one agreement: equal on all ranks that take part in it.
  struct Token {
    std::uint64_t communicator = 0;
    std::uint64_t sequence = 0;
    auto operator<=>(const Token&) const = default;
  };

  /// Holds the first free `bytes` at or after `floor` for `token`, in place of what it held before.
  /// invalid_usage if nothing is free there, or if `token` has been kept.
  Result<std::size_t> propose(Token token, std::size_t bytes, std::size_t floor);
  /// Turns the hold into a taken range, counted once for each caller; release() each. internal if
  /// there is no hold.
  Status keep(Token token);
  /// Drops the hold; no effect if it was kept or never made.
  void drop(Token token);
  /// Gives back [offset, offset + bytes) of a kept range: all of it or a part.
  void release(std::size_t offset, std::size_t bytes);

  std::size_t slot_bytes() const { return slot_bytes_; }
  /// Bytes of kept ranges.
  std::size_t taken_bytes() const;
  /// Bytes of holds that are neither kept nor dropped.
  std::size_t held_bytes() const;

 private:
  struct Taken {
    std::size_t end;
    int keepers;
  };
  struct Hold {
    std::size_t begin;
    std::size_t end;
    bool kept;
  };
  using TakenMap = std::map<std::size_t, Taken>;

  std::size_t first_free(Token token, std::size_t bytes, std::size_t floor) const;
  void count(std::size_t begin, std::size_t end, int change);
  void split_at(std::size_t offset);
  void join_around(std::size_t begin, std::size_t end);

  std::size_t slot_bytes_;
  std::size_t granularity_;
  mutable std::mutex mutex_;
  TakenMap taken_;                // disjoint, by first byte
  std::map<Token, Hold> tokens_;  // kept ones stay until their range is first released
};

/// The size of a slot where ORIEL_BIG_SIZE does not say: `memory_bytes`, the most that any rank of
/// the team can hold (device memory, or the machine's for the host), rounded up to 4 GiB; on the
/// host at most what keeps a team's reservation within 2 TiB (128 GiB in builds for the thread
/// sanitizer, which leaves programs about 512 GiB), but never below 4 GiB. So 50 host teams take at
/// most 100 of the 128 TiB of addresses of an x86-64 process, and communicators with one team
/// share.
std::size_t automatic_slot_bytes(MemoryKind kind, std::size_t memory_bytes, int team_size);

/// Slots are multiples of this, so that stepping to a peer's slot leaves the low 32 bits of an
/// address alone.
inline constexpr std::size_t kSlotUnitBytes = std::size_t{4} << 30;

/// The flat range of one LSA team in this process: team size x slot bytes of reserved addresses.
/// One for all communicators of the process with the same device and ordered team; it goes when the
/// last of them and the last mapping in it have gone. Thread-safe.
class FlatSpace : public std::enable_shared_from_this<FlatSpace> {
 public:
  /// Finds the reservation of this process for (memory's device, team), or makes it. `memory` must
  /// outlive it. `slot_bytes` is a multiple of 4 GiB; spaces of one team with different sizes are
  /// different spaces, so agree on it first.
  static Result<std::shared_ptr<FlatSpace>> acquire(Memory& memory, std::vector<TeamMember> team,
                                                    std::size_t slot_bytes);

  FlatSpace(const FlatSpace&) = delete;
  FlatSpace& operator=(const FlatSpace&) = delete;
  ~FlatSpace();

  std::byte* base() const { return range_->base(); }
  std::size_t slot_bytes() const { return slots_.slot_bytes(); }
  int team_size() const { return static_cast<int>(key_.team.size()); }
  SlotSpace& slots() { return slots_; }

  /// Maps `allocation` into `slot` at `offset`, or counts once more the mapping of the same
  /// allocation that is already there (ranks of one process and communicators with one team meet
  /// here). Destroying the last holder unmaps.
  /// Refused unless the place lies in the slot, and no other allocation is there.
  Result<std::shared_ptr<Mapping>> map(int slot, std::size_t offset, AllocationRef allocation);

 private:
  struct Key {
    MemoryKind kind;
    int device;
    std::size_t slot_bytes;
    std::vector<TeamMember> team;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    AllocationId allocation;
    std::unique_ptr<Mapping> mapping;
    int holders;
  };
  struct Table;
  class Holder;

  FlatSpace(Memory& memory, Key key, std::unique_ptr<AddressRange> range);
  static Table& table();
  void let_go(std::byte* at);

  Memory& memory_;
  Key key_;
  SlotSpace slots_;
  std::unique_ptr<AddressRange> range_;
  std::mutex mutex_;
  std::map<std::byte*, Entry> mapped_;  // destroyed before range_
};

}  // namespace oriel::window
