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

#include "window/mapping/slot_space.hpp"
#include "window/memory/mappable_memory.hpp"

namespace oriel::window {

/// One member of an LSA team, for address reservation: two communicators with equal member lists
/// share one reservation.
struct TeamMember {
  std::uint64_t process = 0;  ///< random number of the member's process
  std::int32_t device = -1;   ///< CUDA device ordinal of the member, or -1
  auto operator<=>(const TeamMember&) const = default;
};

/// Returns the slot size if ORIEL_BIG_SIZE is not set: `memory_bytes` rounded up to 4 GiB.
/// `memory_bytes` is the most that any rank of the team can hold (device memory, or the machine's
/// for the host). On the host, the size keeps a team's reservation within 2 TiB but is never below
/// 4 GiB. Builds for the thread sanitizer use 128 GiB instead of 2 TiB, since it leaves programs
/// about 512 GiB of addresses. 50 host teams thus take at most 100 of the 128 TiB of addresses of
/// an x86-64 process. Communicators with one team share a reservation.
std::size_t automatic_slot_bytes(MemoryKind kind, std::size_t memory_bytes, int team_size);

/// Unit of slot sizes: stepping to a peer's slot does not change the low 32 bits of an address.
inline constexpr std::size_t kSlotUnitBytes = std::size_t{4} << 30;

/// The flat range of one LSA team in this process: team size x slot bytes of reserved addresses.
/// All communicators of the process with the same device, slot size and ordered team share it. It
/// is freed with its last holder or mapping. Thread-safe.
class FlatSpace : public std::enable_shared_from_this<FlatSpace> {
 public:
  /// Finds or makes this process's reservation for (memory's device, team, slot size). `memory`
  /// must outlive it. `slot_bytes` is a multiple of 4 GiB. Spaces of one team with different slot
  /// sizes are different spaces, so the ranks must agree on the size first.
  static Result<std::shared_ptr<FlatSpace>> acquire(Memory& memory, std::vector<TeamMember> team,
                                                    std::size_t slot_bytes);

  FlatSpace(const FlatSpace&) = delete;
  FlatSpace& operator=(const FlatSpace&) = delete;
  ~FlatSpace();

  std::byte* base() const { return range_->base(); }
  std::size_t slot_bytes() const { return slots_.slot_bytes(); }
  SlotSpace& slots() { return slots_; }

  /// Maps `allocation` into `slot` at `offset`. If this allocation is mapped there already,
  /// increments its holder count; ranks of one process and communicators with one team share
  /// mappings this way. Destroying the last holder unmaps. Refused unless the place lies in the
  /// slot and no other allocation is mapped there.
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
