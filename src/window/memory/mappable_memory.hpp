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

/// Identifies a physical allocation among all ranks for as long as anybody holds it. `process` is a
/// random number per process. `serial` counts up and is never reused.
struct AllocationId {
  std::uint64_t process = 0;
  std::uint64_t serial = 0;
  auto operator<=>(const AllocationId&) const = default;
};

/// A physical allocation that this process holds open: its own, or one imported from a peer. The
/// memory lives until the last holder in any process releases it. Immutable and freely shareable.
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
  std::byte* base = nullptr;  ///< address at which the allocation's first byte is mapped
  std::size_t bytes = 0;      ///< size of the allocation
};

/// Handle sent to a peer: a file descriptor over a unix socket, or a fabric handle inline.
using FabricHandle = std::array<std::byte, 64>;
using ShareableHandle = std::variant<OwnedFd, FabricHandle>;

/// An owned range of reserved addresses. The destructor releases it; destroy all Mappings in it
/// first.
class AddressRange {
 public:
  virtual ~AddressRange() = default;
  virtual std::byte* base() const = 0;
};

/// One allocation mapped into an AddressRange, readable and writable by the rank's device (or the
/// CPU). The destructor unmaps and leaves the addresses reserved. Holds its allocation, and must be
/// destroyed before the range. The caller ensures that nothing uses the mapping when destroying it.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual std::byte* base() const = 0;
};

/// Says when memory gets its physical pages: `ready` at allocation, `on_demand` page by page at the
/// first access. Only the host distinguishes them, for sizes of at least 2 MiB, if the kernel can
/// collapse pages.
enum class Backing : std::uint8_t { ready, on_demand };

/// The memory of one device of this process (the host counts as one). Thread-safe. No function
/// synchronises a device or breaks a stream capture of another thread.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual MemoryKind kind() const = 0;
  /// Returns the CUDA device ordinal, or -1 for the host.
  virtual int device() const = 0;
  /// Returns the alignment of the begin and end of mappings.
  virtual std::size_t granularity() const = 0;

  /// Allocates shareable memory of at least `bytes`, mapped and ready for use; ncclMemAlloc returns
  /// it.
  Result<void*> allocate(std::size_t bytes) { return allocate(bytes, Backing::ready); }
  virtual Result<void*> allocate(std::size_t bytes, Backing backing) = 0;
  /// Frees memory that allocate() of the same device returned. invalid_argument: any other pointer.
  /// invalid_usage: a rank of this process has a window on it. Windows of other processes keep the
  /// physical memory alive.
  virtual Status free(void* pointer) = 0;
  /// Frees memory for an owner that cannot be told to wait. The caller must stop using the pointer
  /// now; the memory is freed once no rank of this process has a window on it.
  virtual Status free_when_unused(void* pointer) = 0;

  /// Finds the allocations, mapped back to back, behind [pointer, pointer + bytes). Refuses memory
  /// that cannot be shared (malloc, cudaMalloc); the hint names the call to use instead. Also
  /// refuses a missing handle type (named) and a range past the end of its allocation.
  virtual Result<std::vector<Segment>> find_segments(const void* pointer, std::size_t bytes) = 0;

  virtual Result<ShareableHandle> export_handle(const Allocation& allocation) = 0;
  /// Returns whether memory of later allocate() calls can be exported as a fabric handle, as far as
  /// a trial shows. Each call may take as long as an allocation.
  virtual bool exports_fabric_handles() { return false; }
  /// Imports a peer's handle. `bytes` and the handle come from a peer. The host checks them against
  /// each other: size and seals of the memfd.
  virtual Result<AllocationRef> import_handle(ShareableHandle handle, AllocationId id,
                                              std::size_t bytes) = 0;

  virtual Result<std::unique_ptr<AddressRange>> reserve(std::size_t bytes,
                                                        std::size_t alignment) = 0;
  /// Maps all of `allocation` at `at`, which must be granule-aligned and free in `range`.
  virtual Result<std::unique_ptr<Mapping>> map(AddressRange& range, std::byte* at,
                                               AllocationRef allocation) = 0;
};

}  // namespace oriel::window
