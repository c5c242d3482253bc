// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/memory_block.hpp"

#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "base/fork.hpp"
#include "base/process_number.hpp"
#include "base/try.hpp"
#include "window/memory/allocation_table.hpp"

namespace oriel::window {

AllocationId next_allocation_id() {
  static std::atomic<std::uint64_t> next{1};
  return {process_number(), next.fetch_add(1, std::memory_order_relaxed)};
}

Status check_reservation(std::size_t bytes, std::size_t alignment) {
  if (bytes != 0 && bytes <= kMaxMemoryBytes && alignment <= kMaxMemoryBytes &&
      (alignment & (alignment - 1)) == 0) {
    return {};
  }
  return Error(ErrorCode::invalid_argument,
               fmt::format("reserving {} bytes of addresses aligned to {}: the size must be 1 to "
                           "{}, the alignment a power of two",
                           bytes, alignment, kMaxMemoryBytes))
      .with_hint("lower ORIEL_BIG_SIZE: the address space has a slot of that size for each rank");
}

Error past_the_end(const void* pointer, std::size_t bytes, std::size_t left) {
  return Error(ErrorCode::invalid_argument,
               fmt::format("{} bytes at {} reach past the end of their allocation, of which {} "
                           "bytes are left from there",
                           bytes, pointer, left))
      .with_hint("pass a size of at most those bytes");
}

Status Occupancy::take(std::byte* at, std::size_t bytes, std::size_t granularity) {
  const std::uintptr_t begin = address_of(at) - address_of(base_);  // wraps if before the base
  if (begin > bytes_ || bytes > bytes_ - begin || begin % granularity != 0) {
    return Error(ErrorCode::internal,
                 fmt::format("mapping {} bytes at offset {:#x} of a range of {} bytes in steps of "
                             "{}: not inside it, or between steps",
                             bytes, begin, bytes_, granularity));
  }
  const std::lock_guard lock(mutex_);
  const auto next = taken_.lower_bound(begin);
  const bool hits_next = next != taken_.end() && next->first < begin + bytes;
  const bool hits_previous = next != taken_.begin() && std::prev(next)->second > begin;
  if (hits_next || hits_previous) {
    return Error(ErrorCode::internal,
                 fmt::format("mapping {} bytes at offset {:#x} of a range: something is mapped "
                             "there already",
                             bytes, begin));
  }
  taken_.emplace(begin, begin + bytes);
  return {};
}

void Occupancy::release(std::byte* at) {
  const std::lock_guard lock(mutex_);
  taken_.erase(address_of(at) - address_of(base_));
}

Status BlockMemory::check_available(std::size_t) {
  return {};
}

void BlockMemory::place(std::byte*, std::size_t) {}

void BlockMemory::prepare(std::byte*, std::size_t) {}

Result<void*> BlockMemory::allocate(std::size_t bytes, Backing backing) {
  if (bytes == 0 || bytes > kMaxMemoryBytes) {
    return Error(
               ErrorCode::invalid_argument,
               fmt::format("allocating {} bytes: the size must be 1 to {}", bytes, kMaxMemoryBytes))
        .with_hint("pass a size in bytes within these limits");
  }
  if (backing == Backing::ready) ORIEL_CHECK(check_available(bytes));
  Block block{};
  block.forks = fork_count();
  ORIEL_TRY(block.allocation, create(bytes));
  const std::size_t rounded = block.allocation->bytes();
  ORIEL_TRY(block.range,
            reserve(rounded, rounded % kHugePageBytes == 0 ? kHugePageBytes : granularity()));
  std::byte* const base = block.range->base();
  ORIEL_TRY(block.mapping, map(*block.range, base, block.allocation));
  place(base, rounded);
  if (backing == Backing::ready) prepare(base, rounded);
  const std::lock_guard lock(mutex_);
  blocks_.emplace(address_of(base), std::move(block));
  return static_cast<void*>(base);
}

Result<BlockMemory::Block> BlockMemory::take(void* pointer, IfOccupied if_occupied) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address_of(pointer));
  if (found == blocks_.end()) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("free of {}: not a pointer that ncclMemAlloc returned for this "
                             "device, or freed before",
                             pointer))
        .with_hint("free each pointer of ncclMemAlloc once, with its device current");
  }
  // Refuses since a new allocation could otherwise get the address of a window on the old one.
  // Inherited windows do not count: they cannot be used.
  const bool inherited = found->second.forks != fork_count();
  if (if_occupied == IfOccupied::refuse && !inherited &&
      AllocationTable::instance().occupied(found->second.allocation->id())) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("free of {}: a window is registered on it", pointer))
        .with_hint("call ncclCommWindowDeregister for its windows first");
  }
  Block block = std::move(found->second);
  blocks_.erase(found);
  return block;
}

Status BlockMemory::free(void* pointer) {
  // Destroys the block after the lock is released, since unmapping is slow.
  ORIEL_TRY(const Block block, take(pointer, IfOccupied::refuse));
  return {};
}

Status BlockMemory::free_when_unused(void* pointer) {
  ORIEL_TRY(Block block, take(pointer, IfOccupied::take));
  const AllocationId id = block.allocation->id();
  AllocationTable::instance().destroy_when_vacant(id, std::make_shared<Block>(std::move(block)));
  return {};
}

Result<std::optional<Segment>> BlockMemory::find_block(const void* pointer) {
  const std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(address_of(pointer));
  if (found == blocks_.begin()) return std::optional<Segment>();
  const auto& [base, block] = *--found;
  if (address_of(pointer) - base >= block.allocation->bytes()) return std::optional<Segment>();
  if (block.forks != fork_count()) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("the memory at {} was allocated before this process was forked: it is "
                             "that of the parent",
                             pointer))
        .with_hint("call ncclMemAlloc in the process that registers the memory");
  }
  return std::optional(Segment{block.allocation, block.range->base(), block.allocation->bytes()});
}

}  // namespace oriel::window
