// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/memory_host.hpp"

#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alignment.hpp"
#include "base/log.hpp"
#include "base/shared_memory.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"
#include "topo/choice/local_affinity.hpp"
#include "topo/choice/placement.hpp"
#include "window/memory/available_memory.hpp"
#include "window/memory/memory_block.hpp"

// Available since Linux 5.14 and 6.1; older C libraries do not define them.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace oriel::window {
namespace {

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

/// Reserved addresses without accessible memory; unmapped when destroyed. Other mappings may
/// replace parts of it.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : raw_(std::exchange(other.raw_, nullptr)),
        raw_bytes_(std::exchange(other.raw_bytes_, 0)),
        base_(std::exchange(other.base_, nullptr)) {}
  Reservation& operator=(Reservation&& other) noexcept {
    std::swap(raw_, other.raw_);
    std::swap(raw_bytes_, other.raw_bytes_);
    std::swap(base_, other.base_);
    return *this;
  }
  ~Reservation() {
    if (raw_ != nullptr) static_cast<void>(sys().munmap(raw_, raw_bytes_));
  }

  static Result<Reservation> make(std::size_t bytes, std::size_t alignment) {
    // Reserves more by the alignment, since mmap aligns only to pages. The surplus stays reserved:
    // it uses addresses but no memory, and trimming could fail.
    Reservation made;
    made.raw_bytes_ = bytes + (alignment > page_bytes() ? alignment : 0);
    void* raw = sys().mmap(nullptr, made.raw_bytes_, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
      return system_error(fmt::format("reserving {} bytes of addresses", bytes));
    }
    made.raw_ = raw;
    made.base_ = reinterpret_cast<std::byte*>(round_up(address_of(raw), alignment));
    return made;
  }

  std::byte* base() const { return base_; }

 private:
  void* raw_ = nullptr;
  std::size_t raw_bytes_ = 0;
  std::byte* base_ = nullptr;
};

/// Turns [at, at + bytes) back into reserved addresses. If this fails, the memory stays mapped
/// until a later mapping replaces it.
void unmap_to_reserved(std::byte* at, std::size_t bytes) {
  // Tries twice, because no caller could handle a temporary shortage of memory.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (sys().mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                   -1, 0) != MAP_FAILED) {
      return;
    }
  }
  Log().warn(
      "{} bytes at {} could not be unmapped (errno {}); hint: raise vm.max_map_count, or free "
      "memory",
      bytes, static_cast<void*>(at), errno);
}

/// Restores the reservation after a failed MAP_FIXED: some kernels remove the old mapping before
/// failing.
void fill_hole(std::byte* at, std::size_t bytes) {
  static_cast<void>(sys().mmap(at, bytes, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
                               -1, 0));
}

/// Requests huge pages; errors are ignored, because a mapping works without them.
void prefer_huge_pages(std::byte* base, std::size_t bytes) {
  if (bytes >= kHugePageBytes) static_cast<void>(sys().madvise(base, bytes, MADV_HUGEPAGE));
}

/// Turns a new memfd into huge pages. The kernel does so by itself only if the machine's settings
/// allow huge pages for shared memory, which is off by default. MADV_COLLAPSE also needs a present
/// page in each range. Measured on a 2-core machine with 256 MiB: 13 ms, against 190 ms of page
/// faults later. A peer's first pass over the mapping takes 1 ms instead of 16. Uses one call for
/// all pages, because each call waits for every processor. On a busy machine, one call per huge
/// page took 2,180 ms for 256 MiB, one call for all 64 ms.
void collapse_to_huge_pages(std::byte* base, std::size_t bytes) {
  const std::size_t huge_bytes = bytes / kHugePageBytes * kHugePageBytes;
  for (std::size_t at = 0; at < huge_bytes; at += kHugePageBytes) {
    // Reports a shortage of memory, for which a plain store would raise SIGBUS.
    if (sys().madvise(base + at, page_bytes(), MADV_POPULATE_WRITE) != 0) return;
    // If collapsing is impossible, touches no more pages.
    if (at == 0 && sys().madvise(base, kHugePageBytes, MADV_COLLAPSE) != 0) return;
  }
  static_cast<void>(sys().madvise(base, huge_bytes, MADV_COLLAPSE));
}

/// A memfd, held by descriptor if it is this process's, by a mapping if it is a peer's. A process
/// with 64 ranks imports hundreds of memfds. Descriptors are scarce (1024 by default), addresses
/// are not.
class HostAllocation final : public Allocation {
 public:
  HostAllocation(AllocationId id, std::size_t bytes, OwnedFd fd)
      : Allocation(id, bytes, MemoryKind::host), fd_(std::move(fd)) {}
  HostAllocation(AllocationId id, std::size_t bytes, Reservation home)
      : Allocation(id, bytes, MemoryKind::host), home_(std::move(home)) {}

  const OwnedFd& fd() const { return fd_; }

  /// Maps the whole allocation at `at`, which must be reserved.
  Status map_at(std::byte* at) const {
    // An old length of 0 keeps the home mapping and maps the same pages a second time.
    void* mapped =
        fd_.valid()
            ? sys().mmap(at, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_.get(), 0)
            : sys().mremap(home_.base(), 0, bytes(), MREMAP_MAYMOVE | MREMAP_FIXED, at);
    if (mapped == MAP_FAILED) {
      Error error = system_error(fmt::format("mapping {} bytes of shared memory", bytes()));
      fill_hole(at, bytes());
      return error;
    }
    prefer_huge_pages(at, bytes());
    return {};
  }

 private:
  OwnedFd fd_;
  Reservation home_;
};

class HostRange final : public AddressRange {
 public:
  HostRange(Reservation reservation, std::size_t bytes)
      : reservation_(std::move(reservation)), occupancy_(reservation_.base(), bytes) {}

  std::byte* base() const override { return reservation_.base(); }
  Occupancy& occupancy() { return occupancy_; }

 private:
  Reservation reservation_;
  Occupancy occupancy_;
};

class HostMapping final : public Mapping {
 public:
  HostMapping(HostRange& range, std::byte* base, AllocationRef allocation)
      : range_(&range), base_(base), allocation_(std::move(allocation)) {}
  ~HostMapping() override {
    if (mapped_) unmap_to_reserved(base_, allocation_->bytes());
    if (taken_) range_->occupancy().release(base_);
  }
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  /// Maps `memory`, which is the allocation passed to the constructor. The destructor undoes
  /// whatever succeeded before a failure.
  Status map(const HostAllocation& memory, std::size_t granularity) {
    ORIEL_CHECK(range_->occupancy().take(base_, memory.bytes(), granularity));
    taken_ = true;
    ORIEL_CHECK(memory.map_at(base_));
    mapped_ = true;
    return {};
  }
  std::byte* base() const override { return base_; }

 private:
  HostRange* range_;
  std::byte* base_;
  AllocationRef allocation_;
  bool taken_ = false;   // the place in the range
  bool mapped_ = false;  // the memory there
};

class HostMemory final : public BlockMemory {
 public:
  MemoryKind kind() const override { return MemoryKind::host; }
  int device() const override { return -1; }
  std::size_t granularity() const override { return page_bytes(); }

  Result<std::vector<Segment>> find_segments(const void* pointer, std::size_t bytes) override;
  Result<ShareableHandle> export_handle(const Allocation& allocation) override;
  Result<AllocationRef> import_handle(ShareableHandle handle, AllocationId id,
                                      std::size_t bytes) override;
  Result<std::unique_ptr<AddressRange>> reserve(std::size_t bytes, std::size_t alignment) override;
  Result<std::unique_ptr<Mapping>> map(AddressRange& range, std::byte* at,
                                       AllocationRef allocation) override;

 private:
  Result<AllocationRef> create(std::size_t bytes) override;
  Status check_available(std::size_t bytes) override {
    // prepare() makes no smaller sizes present.
    return bytes < kHugePageBytes ? Status() : check_available_memory(bytes, topo::FileTree("/"));
  }
  void place(std::byte* base, std::size_t bytes) override;
  void prepare(std::byte* base, std::size_t bytes) override { collapse_to_huge_pages(base, bytes); }
};

Result<AllocationRef> HostMemory::create(std::size_t bytes) {
  const std::size_t rounded =
      round_up(bytes, bytes >= kHugePageBytes ? kHugePageBytes : page_bytes());
  ORIEL_TRY(OwnedFd fd, make_sealed_memfd(rounded));
  return AllocationRef(
      std::make_shared<const HostAllocation>(next_allocation_id(), rounded, std::move(fd)));
}

// Sets the policy of the memfd. By default a page lies near the thread that touches it first, often
// a peer's. The policy holds for all mappings, including peers', and for huge pages made of these
// pages.
void HostMemory::place(std::byte* base, std::size_t bytes) {
  const int node = topo::own_affinity_of_processors().memory_node;
  if (node < 0) return;
  Log().trace("{} bytes of host memory prefer NUMA node {}", bytes, node);
  topo::prefer_memory_node(base, bytes, node);
}

Result<std::vector<Segment>> HostMemory::find_segments(const void* pointer, std::size_t bytes) {
  ORIEL_TRY(std::optional<Segment> block, find_block(pointer));
  if (!block) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the memory at {} cannot be shared with other ranks", pointer))
        .with_hint("allocate it with ncclMemAlloc instead of malloc");
  }
  const std::size_t left = block->bytes - (address_of(pointer) - address_of(block->base));
  if (bytes > left) return past_the_end(pointer, bytes, left);
  std::vector<Segment> segments;
  segments.push_back(std::move(*block));
  return segments;
}

Result<ShareableHandle> HostMemory::export_handle(const Allocation& allocation) {
  const auto* host = dynamic_cast<const HostAllocation*>(&allocation);
  if (host == nullptr || !host->fd().valid()) {
    return Error(ErrorCode::internal, "export of memory that this process did not allocate");
  }
  OwnedFd copy(sys().fcntl_int(host->fd().get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) return system_error("duplicating a memfd");
  return ShareableHandle(std::move(copy));
}

Result<AllocationRef> HostMemory::import_handle(ShareableHandle handle, AllocationId id,
                                                std::size_t bytes) {
  auto* fd = std::get_if<OwnedFd>(&handle);
  if (fd == nullptr || !fd->valid()) {
    return Error(ErrorCode::remote, "host memory comes as a file descriptor, but there is none");
  }
  if (bytes == 0 || bytes > kMaxMemoryBytes || bytes % page_bytes() != 0) {
    return Error(ErrorCode::remote,
                 fmt::format("a peer announced an allocation of {} bytes: not 1 to {} whole pages",
                             bytes, kMaxMemoryBytes / page_bytes()));
  }
  ORIEL_CHECK(check_sealed_memfd(*fd, bytes));
  ORIEL_TRY(Reservation home, Reservation::make(bytes, page_bytes()));
  if (sys().mmap(home.base(), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd->get(),
                 0) == MAP_FAILED) {
    Error error = system_error(fmt::format("mapping {} bytes of a peer's memory", bytes));
    fill_hole(home.base(), bytes);
    return error;
  }
  return AllocationRef(std::make_shared<const HostAllocation>(id, bytes, std::move(home)));
}

Result<std::unique_ptr<AddressRange>> HostMemory::reserve(std::size_t bytes,
                                                          std::size_t alignment) {
  ORIEL_CHECK(check_reservation(bytes, alignment));
  ORIEL_TRY(Reservation reservation,
            Reservation::make(bytes, alignment > page_bytes() ? alignment : page_bytes()));
  return std::unique_ptr<AddressRange>(std::make_unique<HostRange>(std::move(reservation), bytes));
}

Result<std::unique_ptr<Mapping>> HostMemory::map(AddressRange& range, std::byte* at,
                                                 AllocationRef allocation) {
  auto* host_range = dynamic_cast<HostRange*>(&range);
  const auto* host = dynamic_cast<const HostAllocation*>(allocation.get());
  if (host_range == nullptr || host == nullptr) {
    return Error(ErrorCode::internal,
                 "mapping host memory: the range or the memory is not of the host");
  }
  auto mapping = std::make_unique<HostMapping>(*host_range, at, std::move(allocation));
  ORIEL_CHECK(mapping->map(*host, page_bytes()));
  return std::unique_ptr<Mapping>(std::move(mapping));
}

}  // namespace

Memory& host_memory() {
  // Never destroyed: static objects of the application may free memory after Oriel's are destroyed.
  static Memory* const memory = [] {
    auto* const made = new HostMemory;
    made->keep_free_in_children();
    return made;
  }();
  return *memory;
}

}  // namespace oriel::window
