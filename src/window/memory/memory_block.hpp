// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "base/alignment.hpp"
#include "base/fork.hpp"
#include "window/memory/allocation_table.hpp"
#include "window/memory/mappable_memory.hpp"

/// What the memories of host and GPUs have in common.
namespace oriel::window {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
/// More than any machine can address; keeps sums of sizes from wrapping.
inline constexpr std::size_t kMaxMemoryBytes = std::size_t{1} << 46;

inline std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// A name that this process has not given before. Thread-safe.
AllocationId next_allocation_id();

/// Refuses sizes that are 0 or absurd and alignments that are no power of two.
Status check_reservation(std::size_t bytes, std::size_t alignment);

/// The error for a window that is longer than the memory under it.
Error past_the_end(const void* pointer, std::size_t bytes, std::size_t left);

/// Which stretches of an AddressRange have something mapped. Thread-safe.
class Occupancy {
 public:
  Occupancy(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  /// Refused unless [at, at + bytes) lies in the range, at a multiple of `granularity`, and is
  /// free.
  Status take(std::byte* at, std::size_t bytes, std::size_t granularity);
  void give_back(std::byte* at);

 private:
  std::byte* base_;
  std::size_t bytes_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> taken_;  // begin and end, as offsets
};

/// allocate() and free() over the parts that differ: a fresh allocation is reserved for and mapped
/// as a peer's would be.
class BlockMemory : public Memory {
 public:
  using Memory::allocate;
  Result<void*> allocate(std::size_t bytes, Backing backing) final;
  Status free(void* pointer) final;
  Status free_when_unused(void* pointer) final;
  /// For memory that a forked child may free, and that is never destroyed.
  void keep_free_in_children() {
    oriel::keep_free_in_children(ForkLock::memory_blocks, mutex_);
    AllocationTable::instance().keep_free_in_children();
  }

 protected:
  /// Refuses what cannot be made ready; called first, and only for what is to be.
  virtual Status check_room(std::size_t bytes);
  /// Fresh memory of at least `bytes`, a multiple of granularity().
  virtual Result<AllocationRef> create(std::size_t bytes) = 0;
  /// Called once on what allocate() is about to return, while nobody has touched it.
  virtual void place(std::byte* base, std::size_t bytes);
  /// Called after that, if it is to be ready.
  virtual void prepare(std::byte* base, std::size_t bytes);

  /// The block of allocate() that `pointer` points into. Refused if it was inherited: it is the
  /// memory of another rank, of the process that made it, and two ranks cannot have one block.
  Result<std::optional<Segment>> find_block(const void* pointer);

 private:
  struct Block {
    AllocationRef allocation;
    std::unique_ptr<AddressRange> range;
    std::unique_ptr<Mapping> mapping;  // destroyed before range
    std::uint32_t forks;               // fork_count() of the process that made it
  };
  enum class IfOccupied : std::uint8_t { refuse, take };
  /// Takes the block at `pointer` out of blocks_.
  Result<Block> take(void* pointer, IfOccupied if_occupied);

  std::mutex mutex_;                        // taken before that of the AllocationTable
  std::map<std::uintptr_t, Block> blocks_;  // by the first address
};

}  // namespace oriel::window
