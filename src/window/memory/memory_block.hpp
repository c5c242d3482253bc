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

/// Code shared by the memories of host and GPUs.
namespace oriel::window {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
/// Limits sizes of memory and of reserved addresses to 64 TiB; keeps sums of sizes from wrapping.
inline constexpr std::size_t kMaxMemoryBytes = std::size_t{1} << 46;

inline std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Returns an identity that this process has not used before. Thread-safe.
AllocationId next_allocation_id();

/// Refuses sizes that are 0 or exceed kMaxMemoryBytes, and alignments that are no power of two.
Status check_reservation(std::size_t bytes, std::size_t alignment);

/// Returns the error for a window that is longer than the memory under it.
Error past_the_end(const void* pointer, std::size_t bytes, std::size_t left);

/// Records which parts of an AddressRange are mapped. Thread-safe.
class Occupancy {
 public:
  Occupancy(std::byte* base, std::size_t bytes) : base_(base), bytes_(bytes) {}
  /// Takes [at, at + bytes). Refused unless it lies in the range, begins at a multiple of
  /// `granularity`, and is free.
  Status take(std::byte* at, std::size_t bytes, std::size_t granularity);
  void release(std::byte* at);

 private:
  std::byte* base_;
  std::size_t bytes_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> taken_;  // from begin to end, as offsets
};

/// Implements allocate() and free() for all kinds of memory. Reserves addresses for a new
/// allocation and maps it there, as for a peer's allocation.
class BlockMemory : public Memory {
 public:
  using Memory::allocate;
  Result<void*> allocate(std::size_t bytes, Backing backing) final;
  Status free(void* pointer) final;
  Status free_when_unused(void* pointer) final;
  /// Keeps the locks usable in a forked child that may free memory. For objects that are never
  /// destroyed.
  void keep_free_in_children() {
    oriel::keep_free_in_children(ForkLock::memory_blocks, mutex_);
    AllocationTable::instance().keep_free_in_children();
  }

 protected:
  /// Refuses sizes that cannot be made ready. Called first, and only for Backing::ready.
  virtual Status check_available(std::size_t bytes);
  /// Creates new memory of at least `bytes`, a multiple of granularity().
  virtual Result<AllocationRef> create(std::size_t bytes) = 0;
  /// Sets the NUMA placement. Called once before allocate() returns, while nobody has touched the
  /// memory.
  virtual void place(std::byte* base, std::size_t bytes);
  /// Makes the memory present. Called after place(), only for Backing::ready.
  virtual void prepare(std::byte* base, std::size_t bytes);

  /// Returns the block of allocate() that contains `pointer`, or nothing. Refuses an inherited
  /// block: it belongs to the process that made it.
  Result<std::optional<Segment>> find_block(const void* pointer);

 private:
  struct Block {
    AllocationRef allocation;
    std::unique_ptr<AddressRange> range;
    std::unique_ptr<Mapping> mapping;  // destroyed before range
    std::uint32_t forks;               // fork_count() of the process that made the block
  };
  enum class IfOccupied : std::uint8_t { refuse, take };
  /// Removes the block at `pointer` from blocks_.
  Result<Block> take(void* pointer, IfOccupied if_occupied);

  std::mutex mutex_;                        // locked before the mutex of the AllocationTable
  std::map<std::uintptr_t, Block> blocks_;  // by first address
};

}  // namespace oriel::window
