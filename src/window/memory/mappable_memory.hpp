// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "oriel/error.hpp"

#include "base/fd.hpp"

/// Memory that several ranks can map, behind one interface: sealed memfds on the host, cuMem
/// allocations on GPUs.
namespace oriel::window {

enum class MemoryKind : std::uint8_t { host = 1, cuda = 2 };

/// Names a physical allocation among all ranks for as long as anybody holds it. `process` is random
/// per process; `serial` counts and is never used again.
struct AllocationId {
  std::uint64_t process = 0;
  std::uint64_t serial = 0;
  auto operator<=>(const AllocationId&) const = default;
};

/// A physical allocation that this process holds open: its own, or one imported from a peer. The
/// memory lives until the last holder in any process lets go. Immutable; share it freely.
class Allocation {
 public:
  virtual ~Allocation() = default;
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  AllocationId id() const { return id_; }
  std::size_t bytes() const { return bytes_; }
  MemoryKind kind() const { return kind_; }

 protected:
  Allocation(AllocationId id, std::size_t bytes, MemoryKind kind)
      : id_(id), bytes_(bytes), kind_(kind) {}

 private:
  AllocationId id_;
  std::size_t bytes_;
  MemoryKind kind_;
};
using AllocationRef = std::shared_ptr<const Allocation>;

/// One allocation as it is mapped in the caller's address space.
struct Segment {
  AllocationRef allocation;
  std::byte* base = nullptr;  ///< where the allocation's first byte is mapped
  std::size_t bytes = 0;      ///< of the allocation
};

/// What travels to a peer: a file descriptor through a unix socket, or a fabric handle inline.
using FabricHandle = std::array<std::byte, 64>;
using ShareableHandle = std::variant<OwnedFd, FabricHandle>;

/// An owned stretch of reserved addresses; released when destroyed, after all Mappings in it.
class AddressRange {
 public:
  virtual ~AddressRange() = default;
  virtual std::byte* base() const = 0;
};

/// One allocation mapped into an AddressRange, readable and writable by the rank's device (or the
/// CPU). Unmaps when destroyed, leaving the addresses reserved. Holds its allocation, and must be
/// destroyed before the range. Whoever destroys it has made sure that nothing still uses it.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual std::byte* base() const = 0;
};

/// Whether memory is made present when it is allocated, as far as the device leaves a choice (the
/// host does), or page by page when it is first touched.
enum class Backing : std::uint8_t { ready, on_demand };

/// The memory of one device of this process (the host counts as one). Thread-safe. Nothing here
/// synchronises a device or fails a stream capture that another thread has begun.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual MemoryKind kind() const = 0;
  /// The CUDA device ordinal, or -1 for the host.
  virtual int device() const = 0;
  /// Mappings begin and end at multiples of this.
  virtual std::size_t granularity() const = 0;

  /// Shareable memory of at least `bytes`, mapped and ready for use; what ncclMemAlloc returns.
  Result<void*> allocate(std::size_t bytes) { return allocate(bytes, Backing::ready); }
  virtual Result<void*> allocate(std::size_t bytes, Backing backing) = 0;
  /// Frees what allocate() of the same device returned. invalid_argument for any other pointer;
  /// invalid_usage while a rank of this process has a window on it. Windows of other processes keep
  /// the memory itself alive.
  virtual Status free(void* pointer) = 0;
  /// The same for an owner that cannot be told to wait: the caller's use of the pointer ends here,
  /// and the memory goes once no rank of this process has a window on it.
  virtual Status free_when_unused(void* pointer) = 0;

  /// The allocations, mapped back to back, behind [pointer, pointer + bytes). Refused, with the
  /// call to use instead as hint: memory that cannot be shared (malloc, cudaMalloc), a missing
  /// handle type (named), a range past the end of its allocation.
  virtual Result<std::vector<Segment>> find_segments(const void* pointer, std::size_t bytes) = 0;

  virtual Result<ShareableHandle> export_handle(const Allocation& allocation) = 0;
  /// Whether memory that allocate() gives from now on can be exported as a fabric handle, as far as
  /// trying tells. The first call may take as long as an allocation.
  virtual bool exports_fabric_handles() { return false; }
  /// Takes over a peer's handle. `bytes` and the handle come from a peer and are checked against
  /// each other (a memfd: its size and seals).
  virtual Result<AllocationRef> import_handle(ShareableHandle handle, AllocationId id,
                                              std::size_t bytes) = 0;

  virtual Result<std::unique_ptr<AddressRange>> reserve(std::size_t bytes,
                                                        std::size_t alignment) = 0;
  /// Maps all of `allocation` at `at`, which lies, granule-aligned and free, in `range`.
  virtual Result<std::unique_ptr<Mapping>> map(AddressRange& range, std::byte* at,
                                               AllocationRef allocation) = 0;
};

}  // namespace oriel::window
