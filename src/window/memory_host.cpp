// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory_host.hpp"

#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/process_number.hpp"
#include "base/system_table.hpp"
#include "base/try.hpp"

// Since Linux 5.14 and 6.1; older C libraries do not name them.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace oriel::window {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// More than any machine can address; keeps sums of sizes from wrapping.
constexpr std::size_t kMaxBytes = std::size_t{1} << 46;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Addresses that nothing is mapped at, kept from everybody else; unmapped when destroyed. Its
/// bytes may be mapped over in between.
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
    // mmap aligns to pages only, so the stretch is longer by what alignment can cost. The surplus
    // stays reserved: it costs addresses but no memory, and trimming it could fail.
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

/// Puts [at, at + bytes) back to reserved addresses.
bool unmap_to_reserved(std::byte* at, std::size_t bytes) {
  // Twice, because no caller could do anything about a passing shortage of memory.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (sys().mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                   -1, 0) != MAP_FAILED) {
      return true;
    }
  }
  return false;
}

/// After a failed MAP_FIXED: some kernels have by then removed what was at the place.
void fill_hole(std::byte* at, std::size_t bytes) {
  static_cast<void>(sys().mmap(at, bytes, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
                               -1, 0));
}

/// Asks for huge pages; a mapping works without them, so nothing here can fail.
void prefer_huge_pages(std::byte* base, std::size_t bytes) {
  if (bytes >= kHugePageBytes) static_cast<void>(sys().madvise(base, bytes, MADV_HUGEPAGE));
}

/// Makes a fresh memfd huge pages in fact. The kernel does so by itself only where the machine's
/// settings allow it for shared memory, which by default they do not, and it collapses only a range
/// that has a page already. Measured on a 2-core machine, 256 MiB: 13 ms for this against 190 ms of
/// page faults later, and a peer's first pass over the mapping takes 1 ms instead of 16.
void collapse_to_huge_pages(std::byte* base, std::size_t bytes) {
  for (std::size_t at = 0; at + kHugePageBytes <= bytes; at += kHugePageBytes) {
    // Populating reports a shortage of memory, where a plain store would raise SIGBUS.
    if (sys().madvise(base + at, page_bytes(), MADV_POPULATE_WRITE) != 0) return;
    if (sys().madvise(base + at, kHugePageBytes, MADV_COLLAPSE) != 0) return;
  }
}

/// A memfd: by its descriptor if it is ours, by a mapping of its own if a peer's. A process with 64
/// ranks imports hundreds of them, and descriptors are short (1024 by default) where addresses are
/// not.
class HostAllocation final : public Allocation {
 public:
  HostAllocation(AllocationId id, std::size_t bytes, OwnedFd fd)
      : Allocation(id, bytes, MemoryKind::host), fd_(std::move(fd)) {}
  HostAllocation(AllocationId id, std::size_t bytes, Reservation home)
      : Allocation(id, bytes, MemoryKind::host), home_(std::move(home)) {}

  const OwnedFd& fd() const { return fd_; }

  /// Maps all of it at `at`, which must be reserved.
  Status map_at(std::byte* at) const {
    // An old length of 0 leaves the home mapping in place and maps the same pages a second time.
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

/// Reserved addresses that remember what is mapped in them.
class HostRange final : public AddressRange {
 public:
  HostRange(Reservation reservation, std::size_t bytes)
      : reservation_(std::move(reservation)), bytes_(bytes) {}

  std::byte* base() const override { return reservation_.base(); }
  std::size_t bytes() const override { return bytes_; }

  /// Marks [at, at + bytes) as mapped; refused unless it lies in the range, page-aligned and free.
  Status take(std::byte* at, std::size_t bytes) {
    const std::uintptr_t begin = address_of(at) - address_of(base());  // wraps if before the base
    if (begin > bytes_ || bytes > bytes_ - begin || begin % page_bytes() != 0) {
      return Error(
          ErrorCode::internal,
          fmt::format("mapping {} bytes at offset {:#x} of a range of {} bytes: not inside "
                      "it, or not at a page",
                      bytes, begin, bytes_));
    }
    const std::lock_guard lock(mutex_);
    const auto next = mapped_.lower_bound(begin);
    const bool hits_next = next != mapped_.end() && next->first < begin + bytes;
    const bool hits_previous = next != mapped_.begin() && std::prev(next)->second > begin;
    if (hits_next || hits_previous) {
      return Error(ErrorCode::internal,
                   fmt::format("mapping {} bytes at offset {:#x} of a range: something is mapped "
                               "there already",
                               bytes, begin));
    }
    mapped_.emplace(begin, begin + bytes);
    return {};
  }
  void give_back(std::byte* at) {
    const std::lock_guard lock(mutex_);
    mapped_.erase(address_of(at) - address_of(base()));
  }

 private:
  Reservation reservation_;
  std::size_t bytes_;
  std::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> mapped_;  // begin and end, as offsets
};

class HostMapping final : public Mapping {
 public:
  HostMapping(HostRange& range, std::byte* base, AllocationRef allocation)
      : range_(&range), base_(base), allocation_(std::move(allocation)) {}
  ~HostMapping() override {
    // If even that fails, the place stays marked as taken and is never used again.
    if (unmap_to_reserved(base_, allocation_->bytes())) range_->give_back(base_);
  }
  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  std::byte* base() const override { return base_; }
  std::size_t bytes() const override { return allocation_->bytes(); }

 private:
  HostRange* range_;
  std::byte* base_;
  AllocationRef allocation_;
};

/// A memfd of `bytes` that can neither shrink under a peer's feet nor grow.
Result<OwnedFd> make_sealed_memfd(std::size_t bytes) {
  OwnedFd fd(sys().memfd_create("oriel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_error("memfd_create");
  if (sys().ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error(fmt::format("sizing a memfd to {} bytes", bytes));
  }
  if (sys().fcntl_int(fd.get(), F_ADD_SEALS, kSeals) != 0) return system_error("sealing a memfd");
  return fd;
}

/// That `fd`, which a peer has sent, is a memfd of `bytes` that the peer can no longer resize: a
/// file that shrinks under a mapping would kill this process with SIGBUS.
Status check_memfd(const OwnedFd& fd, std::size_t bytes) {
  struct stat info {};
  if (sys().fstat(fd.get(), &info) != 0) return system_error("fstat of a peer's memory");
  if (!S_ISREG(info.st_mode)) {
    return Error(ErrorCode::remote, "a peer's memory handle is not a memfd");
  }
  const int seals = sys().fcntl_int(fd.get(), F_GET_SEALS, 0);
  if (seals < 0 && errno == EINVAL) {
    return Error(ErrorCode::remote, "a peer's memory handle is not a memfd");
  }
  if (seals < 0) return system_error("reading the seals of a peer's memory");
  if ((seals & kSeals) != kSeals) {
    return Error(ErrorCode::remote,
                 fmt::format("a peer's memfd has seals {:#x}, but needs {:#x}", seals, kSeals));
  }
  if (info.st_size < 0 || static_cast<std::size_t>(info.st_size) != bytes) {
    return Error(
        ErrorCode::remote,
        fmt::format("a peer's memfd has {} bytes, but {} were announced", info.st_size, bytes));
  }
  return {};
}

class HostMemory final : public Memory {
 public:
  MemoryKind kind() const override { return MemoryKind::host; }
  int device() const override { return -1; }
  std::size_t granularity() const override { return page_bytes(); }

  Result<void*> allocate(std::size_t bytes) override;
  Status free(void* pointer) override;
  Result<std::vector<Segment>> find_segments(const void* pointer, std::size_t bytes) override;
  Result<ShareableHandle> export_handle(const Allocation& allocation) override;
  Result<AllocationRef> import_handle(ShareableHandle handle, AllocationId id,
                                      std::size_t bytes) override;
  Result<std::unique_ptr<AddressRange>> reserve(std::size_t bytes, std::size_t alignment) override;
  Result<std::unique_ptr<Mapping>> map(AddressRange& range, std::byte* at,
                                       AllocationRef allocation) override;

 private:
  struct Block {
    std::shared_ptr<const HostAllocation> allocation;
    Reservation addresses;
  };

  std::mutex mutex_;
  std::map<std::uintptr_t, Block> blocks_;  // by the first address
};

Result<void*> HostMemory::allocate(std::size_t bytes) {
  static std::atomic<std::uint64_t> next_serial{1};
  if (bytes == 0 || bytes > kMaxBytes) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("allocating {} bytes: the size must be 1 to {}", bytes, kMaxBytes));
  }
  const std::size_t unit = bytes >= kHugePageBytes ? kHugePageBytes : page_bytes();
  const std::size_t rounded = round_up(bytes, unit);
  ORIEL_TRY(OwnedFd fd, make_sealed_memfd(rounded));
  ORIEL_TRY(Reservation addresses, Reservation::make(rounded, unit));
  const AllocationId id{process_number(), next_serial.fetch_add(1, std::memory_order_relaxed)};
  auto allocation = std::make_shared<const HostAllocation>(id, rounded, std::move(fd));
  ORIEL_CHECK(allocation->map_at(addresses.base()));
  collapse_to_huge_pages(addresses.base(), rounded);

  std::byte* base = addresses.base();
  const std::lock_guard lock(mutex_);
  blocks_.emplace(address_of(base), Block{std::move(allocation), std::move(addresses)});
  return static_cast<void*>(base);
}

Status HostMemory::free(void* pointer) {
  Block block;  // is unmapped after the lock is released
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(address_of(pointer));
  if (found == blocks_.end()) {
    return Error(
        ErrorCode::invalid_argument,
        fmt::format("free of {}: not a pointer that ncclMemAlloc returned, or freed before",
                    pointer));
  }
  block = std::move(found->second);
  blocks_.erase(found);
  return {};
}

Result<std::vector<Segment>> HostMemory::find_segments(const void* pointer, std::size_t bytes) {
  const std::uintptr_t address = address_of(pointer);
  const std::lock_guard lock(mutex_);
  auto found = blocks_.upper_bound(address);
  if (found == blocks_.begin() ||
      address - std::prev(found)->first >= std::prev(found)->second.allocation->bytes()) {
    return std::move(
               Error(ErrorCode::invalid_argument,
                     fmt::format("the memory at {} cannot be shared with other ranks", pointer)))
        .with_hint("allocate it with ncclMemAlloc instead of malloc");
  }
  const auto& [base, block] = *--found;
  const std::size_t offset = address - base;
  if (bytes > block.allocation->bytes() - offset) {
    return Error(
        ErrorCode::invalid_argument,
        fmt::format("{} bytes at {} reach past the end of their allocation: {} bytes are "
                    "left of its {}",
                    bytes, pointer, block.allocation->bytes() - offset, block.allocation->bytes()));
  }
  std::vector<Segment> segments;
  segments.push_back({block.allocation, block.addresses.base(), block.allocation->bytes()});
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
  if (bytes == 0 || bytes > kMaxBytes || bytes % page_bytes() != 0) {
    return Error(ErrorCode::remote,
                 fmt::format("a peer announced an allocation of {} bytes: not 1 to {} whole pages",
                             bytes, kMaxBytes / page_bytes()));
  }
  ORIEL_CHECK(check_memfd(*fd, bytes));
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
  if (bytes == 0 || bytes > kMaxBytes || alignment > kMaxBytes ||
      (alignment & (alignment - 1)) != 0) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("reserving {} bytes of addresses aligned to {}: the size must be 1 to "
                             "{}, the alignment a power of two",
                             bytes, alignment, kMaxBytes));
  }
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
  ORIEL_CHECK(host_range->take(at, host->bytes()));
  if (Status mapped = host->map_at(at); !mapped.ok()) {
    host_range->give_back(at);
    return std::move(mapped).error();
  }
  return std::unique_ptr<Mapping>(
      std::make_unique<HostMapping>(*host_range, at, std::move(allocation)));
}

}  // namespace

Memory& host_memory() {
  // Never destroyed: static objects of the application may still free memory after ours are gone.
  static Memory* const memory = new HostMemory;
  return *memory;
}

}  // namespace oriel::window
