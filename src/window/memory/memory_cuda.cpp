// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/memory/memory_cuda.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/cuda_scope.hpp"
#include "base/cuda_table.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "window/memory/memory_block.hpp"

namespace oriel::window {
namespace {

using Handle = CUmemGenericAllocationHandle;

constexpr auto kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
constexpr auto kFabric = CU_MEM_HANDLE_TYPE_FABRIC;

CUdeviceptr device_pointer(const void* pointer) {
  return address_of(pointer);
}

/// Warns about a failed release. A driver that is shutting down has released everything.
void warn_unless_done(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS || status == CUDA_ERROR_DEINITIALIZED) return;
  Log().warn("{}", cuda_error(what, status).message());
}

/// State shared by all objects of one device; the last of them releases the context.
struct Device {
  int ordinal;
  PrimaryContext context;
  std::size_t granularity;
  std::size_t allocation_unit;  // rounding unit of allocate(): the driver's recommended granularity
  bool rdma_capable;
  mutable std::atomic<bool> fabric;  // fabric handles are possible; false once the driver has
                                     // refused one

  Result<CudaScope> enter() const { return CudaScope::enter(context.get()); }
};
using DeviceRef = std::shared_ptr<const Device>;

/// One reference to a physical allocation.
class OwnedHandle {
 public:
  explicit OwnedHandle(Handle handle) : handle_(handle), owned_(true) {}
  OwnedHandle(OwnedHandle&& other) noexcept
      : handle_(other.handle_), owned_(std::exchange(other.owned_, false)) {}
  OwnedHandle& operator=(OwnedHandle&&) = delete;
  ~OwnedHandle() {
    if (!owned_) return;
    const Result<RelaxedCapture> relaxed = RelaxedCapture::enter();
    warn_unless_done(cuda().mem_release(handle_), "releasing an allocation");
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_;
  bool owned_;
};

class CudaAllocation final : public Allocation {
 public:
  CudaAllocation(AllocationId id, std::size_t bytes, DeviceRef device, OwnedHandle handle,
                 unsigned handle_types)
      : Allocation(id, bytes, MemoryKind::cuda),
        device_(std::move(device)),
        handle_(std::move(handle)),
        handle_types_(handle_types) {}
  ~CudaAllocation() override;
  CudaAllocation(const CudaAllocation&) = delete;
  CudaAllocation& operator=(const CudaAllocation&) = delete;

  Handle handle() const { return handle_.get(); }
  unsigned handle_types() const { return handle_types_; }

 private:
  DeviceRef device_;  // outlives the handle
  OwnedHandle handle_;
  unsigned handle_types_;
};

/// Maps the driver's handles to the allocations that this process holds. A held handle denotes no
/// other allocation, so a handle found here identifies the allocation found before.
class HandleTable {
 public:
  /// Returns the allocation behind `handle`; takes over the caller's reference.
  AllocationRef adopt(OwnedHandle handle, std::size_t bytes, const DeviceRef& device,
                      unsigned handle_types) {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<const CudaAllocation>& known = held_[handle.get()];
    if (auto allocation = known.lock()) return allocation;  // drops the second reference
    auto allocation = std::make_shared<const CudaAllocation>(next_allocation_id(), bytes, device,
                                                             std::move(handle), handle_types);
    known = allocation;
    return allocation;
  }
  void forget(Handle handle) {
    const std::lock_guard lock(mutex_);
    const auto found = held_.find(handle);
    // The handle may have been adopted again since its last holder was destroyed.
    if (found != held_.end() && found->second.expired()) held_.erase(found);
  }

 private:
  std::mutex mutex_;
  std::map<Handle, std::weak_ptr<const CudaAllocation>> held_;
};

HandleTable& handle_table() {
  static HandleTable* const table = new HandleTable;  // outlives every static object
  return *table;
}

CudaAllocation::~CudaAllocation() {
  handle_table().forget(handle_.get());
}

class CudaRange final : public AddressRange {
 public:
  CudaRange(DeviceRef device, CUdeviceptr base, std::size_t bytes)
      : device_(std::move(device)),
        base_(reinterpret_cast<std::byte*>(base)),
        bytes_(bytes),
        occupancy_(base_, bytes) {}
  ~CudaRange() override {
    const Result<CudaScope> scope = device_->enter();
    warn_unless_done(cuda().mem_address_free(device_pointer(base_), bytes_),
                     "releasing reserved addresses");
  }
  CudaRange(const CudaRange&) = delete;
  CudaRange& operator=(const CudaRange&) = delete;

  std::byte* base() const override { return base_; }
  Occupancy& occupancy() { return occupancy_; }

 private:
  DeviceRef device_;
  std::byte* base_;
  std::size_t bytes_;
  Occupancy occupancy_;
};

class CudaMapping final : public Mapping {
 public:
  CudaMapping(DeviceRef device, CudaRange& range, std::byte* base, AllocationRef allocation)
      : device_(std::move(device)),
        range_(&range),
        base_(base),
        allocation_(std::move(allocation)) {}
  ~CudaMapping() override {
    const Result<CudaScope> scope = device_->enter();
    if (mapped_) {
      warn_unless_done(cuda().mem_unmap(device_pointer(base_), allocation_->bytes()),
                       "unmapping a window's memory");
    }
    if (taken_) range_->occupancy().release(base_);
  }
  CudaMapping(const CudaMapping&) = delete;
  CudaMapping& operator=(const CudaMapping&) = delete;

  /// Maps `memory`, which is the allocation passed to the constructor. The destructor undoes
  /// whatever succeeded before a failure.
  Status map(const CudaAllocation& memory, std::size_t granularity);
  std::byte* base() const override { return base_; }

 private:
  DeviceRef device_;
  CudaRange* range_;
  std::byte* base_;
  AllocationRef allocation_;
  bool taken_ = false;   // the place in the range
  bool mapped_ = false;  // the memory there
};

class CudaMemory final : public BlockMemory {
 public:
  explicit CudaMemory(DeviceRef device) : device_(std::move(device)) {}

  MemoryKind kind() const override { return MemoryKind::cuda; }
  int device() const override { return device_->ordinal; }
  std::size_t granularity() const override { return device_->granularity; }

  Result<std::vector<Segment>> find_segments(const void* pointer, std::size_t bytes) override;
  Result<ShareableHandle> export_handle(const Allocation& allocation) override;
  bool exports_fabric_handles() override;
  Result<AllocationRef> import_handle(ShareableHandle handle, AllocationId id,
                                      std::size_t bytes) override;
  Result<std::unique_ptr<AddressRange>> reserve(std::size_t bytes, std::size_t alignment) override;
  Result<std::unique_ptr<Mapping>> map(AddressRange& range, std::byte* at,
                                       AllocationRef allocation) override;

 private:
  Result<AllocationRef> create(std::size_t bytes) override;
  Result<Segment> segment_at(const std::byte* at, OwnedHandle handle);
  Error refuse(const void* pointer) const;

  DeviceRef device_;
};

Result<AllocationRef> CudaMemory::create(std::size_t bytes) {
  ORIEL_TRY(const CudaScope scope, device_->enter());
  const std::size_t rounded = round_up(bytes, device_->allocation_unit);
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = device_location(device_->ordinal);
  wanted.allocFlags.gpuDirectRDMACapable = device_->rdma_capable ? 1 : 0;
  int types = device_->fabric ? kFd | kFabric : kFd;
  Handle handle = 0;
  wanted.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  CUresult status = cuda().mem_create(&handle, rounded, &wanted, 0);
  // The device supports fabric handles, but the machine may lack the service that they need.
  if ((types & kFabric) != 0 &&
      (status == CUDA_ERROR_NOT_PERMITTED || status == CUDA_ERROR_NOT_SUPPORTED)) {
    if (device_->fabric.exchange(false)) {
      Log().info(
          "GPU {} could do fabric handles, but the driver gives this process none ({}); its memory "
          "is shared by file descriptors, inside this node",
          device_->ordinal, cuda_error("allocating", status).message());
    }
    types = kFd;
    wanted.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
    status = cuda().mem_create(&handle, rounded, &wanted, 0);
  }
  if (status != CUDA_SUCCESS) {
    return cuda_error(fmt::format("allocating {} bytes on GPU {}", rounded, device_->ordinal),
                      status);
  }
  return handle_table().adopt(OwnedHandle(handle), rounded, device_, static_cast<unsigned>(types));
}

/// Returns the error for memory without an allocation handle; names the kind of memory.
Error CudaMemory::refuse(const void* pointer) const {
  unsigned type = 0;
  int managed = 0;
  std::array<CUpointer_attribute, 2> names{CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                           CU_POINTER_ATTRIBUTE_IS_MANAGED};
  std::array<void*, 2> values{&type, &managed};
  if (cuda().pointer_get_attributes(2, names.data(), values.data(), device_pointer(pointer)) !=
      CUDA_SUCCESS) {
    type = 0;
    managed = 0;
  }
  const char* what = "memory that CUDA does not know (malloc?)";
  if (managed != 0) {
    what = "managed memory";
  } else if (type == CU_MEMORYTYPE_DEVICE) {
    what = "memory of cudaMalloc or of a memory pool";
  } else if (type == CU_MEMORYTYPE_HOST) {
    what = "pinned host memory";
  }
  return Error(ErrorCode::invalid_argument,
               fmt::format("the address {} is {}, which cannot be shared with other ranks", pointer,
                           what))
      .with_hint(
          "allocate it with ncclMemAlloc, or with cuMemCreate and an exportable handle type");
}

/// Returns the allocation mapped at `at`, which need not be Oriel's; takes over the reference
/// `handle`.
Result<Segment> CudaMemory::segment_at(const std::byte* at, OwnedHandle handle) {
  CUmemAllocationProp found{};
  ORIEL_CHECK(cuda_status("reading the properties of an allocation",
                          cuda().mem_get_allocation_properties_from_handle(&found, handle.get())));
  if (found.location.type != CU_MEM_LOCATION_TYPE_DEVICE || found.location.id != device_->ordinal) {
    const std::string where = found.location.type == CU_MEM_LOCATION_TYPE_DEVICE
                                  ? fmt::format("on GPU {}", found.location.id)
                                  : "in host memory";
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the memory at {} is {}, but the communicator's device is GPU {}",
                             static_cast<const void*>(at), where, device_->ordinal))
        .with_hint("register memory of the communicator's own device");
  }
  const auto types = static_cast<unsigned>(found.requestedHandleTypes) & (kFd | kFabric);
  if (types == 0) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the memory at {} was created without an exportable handle type",
                             static_cast<const void*>(at)))
        .with_hint(
            "create it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR or _FABRIC in "
            "requestedHandleTypes, or with ncclMemAlloc");
  }
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  ORIEL_CHECK(cuda_status("reading the range of an allocation",
                          cuda().mem_get_address_range(&base, &bytes, device_pointer(at))));
  AllocationRef allocation = handle_table().adopt(std::move(handle), bytes, device_, types);
  if (allocation->bytes() != bytes) {
    return Error(
               ErrorCode::invalid_argument,
               fmt::format("the memory at {} is a part ({} bytes) of an allocation that is in use "
                           "with {} bytes",
                           static_cast<const void*>(at), bytes, allocation->bytes()))
        .with_hint("map each allocation whole, or allocate with ncclMemAlloc");
  }
  return Segment{std::move(allocation), reinterpret_cast<std::byte*>(base), bytes};
}

Result<std::vector<Segment>> CudaMemory::find_segments(const void* pointer, std::size_t bytes) {
  ORIEL_TRY(const CudaScope scope, device_->enter());
  const auto* const begin = static_cast<const std::byte*>(pointer);
  std::vector<Segment> segments;
  std::size_t covered = 0;  // bytes from `pointer` on
  do {
    const std::byte* const at = begin + covered;
    Handle retained = 0;
    const CUresult status =
        cuda().mem_retain_allocation_handle(&retained, const_cast<std::byte*>(at));
    if (status == CUDA_ERROR_INVALID_VALUE) {
      if (segments.empty()) return refuse(pointer);
      return past_the_end(pointer, bytes, covered);
    }
    ORIEL_CHECK(cuda_status("looking an allocation up", status));
    ORIEL_TRY(Segment next, segment_at(at, OwnedHandle(retained)));
    covered = address_of(next.base) + next.bytes - address_of(begin);
    segments.push_back(std::move(next));
  } while (covered < bytes);
  return segments;
}

Result<ShareableHandle> CudaMemory::export_handle(const Allocation& allocation) {
  const auto* own = dynamic_cast<const CudaAllocation*>(&allocation);
  if (own == nullptr) return Error(ErrorCode::internal, "export of memory that is not of a GPU");
  ORIEL_TRY(const CudaScope scope, device_->enter());
  if ((own->handle_types() & kFabric) != 0) {
    CUmemFabricHandle fabric{};
    if (cuda().mem_export_to_shareable_handle(&fabric, own->handle(), kFabric, 0) == CUDA_SUCCESS) {
      FabricHandle bytes{};
      static_assert(sizeof fabric.data == sizeof bytes);
      std::copy_n(reinterpret_cast<const std::byte*>(fabric.data), bytes.size(), bytes.begin());
      return ShareableHandle(bytes);
    }
  }
  if ((own->handle_types() & kFd) == 0) {
    return Error(ErrorCode::cuda,
                 "the driver exports no fabric handle for memory that has no other")
        .with_hint("create it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR too");
  }
  int fd = -1;
  ORIEL_CHECK(cuda_status("exporting an allocation as a file descriptor",
                          cuda().mem_export_to_shareable_handle(&fd, own->handle(), kFd, 0)));
  return ShareableHandle(OwnedFd(fd));
}

bool CudaMemory::exports_fabric_handles() {
  if (!device_->fabric) return false;
  const Result<AllocationRef> probe = create(granularity());
  if (!probe.ok() || !device_->fabric) return false;
  const Result<ShareableHandle> handle = export_handle(**probe);
  return handle.ok() && std::holds_alternative<FabricHandle>(*handle);
}

Result<AllocationRef> CudaMemory::import_handle(ShareableHandle handle, AllocationId id,
                                                std::size_t bytes) {
  if (bytes == 0 || bytes > kMaxMemoryBytes || bytes % granularity() != 0) {
    return Error(ErrorCode::remote,
                 fmt::format("a peer announced an allocation of {} bytes: not a multiple of {} up "
                             "to {}",
                             bytes, granularity(), kMaxMemoryBytes));
  }
  ORIEL_TRY(const CudaScope scope, device_->enter());
  Handle imported = 0;
  CUresult status = CUDA_SUCCESS;
  unsigned type = kFd;
  if (const auto* fd = std::get_if<OwnedFd>(&handle)) {
    if (!fd->valid()) return Error(ErrorCode::remote, "a peer's file descriptor is missing");
    // The driver takes the descriptor's number in place of a pointer.
    void* const number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd->get()));
    status = cuda().mem_import_from_shareable_handle(&imported, number, kFd);
  } else {
    CUmemFabricHandle fabric{};
    const FabricHandle& raw = std::get<FabricHandle>(handle);
    std::copy_n(raw.begin(), raw.size(), reinterpret_cast<std::byte*>(fabric.data));
    type = kFabric;
    status = cuda().mem_import_from_shareable_handle(&imported, &fabric, kFabric);
  }
  if (status != CUDA_SUCCESS) {
    return cuda_error(fmt::format("importing {} bytes of a peer's GPU memory by {}", bytes,
                                  type == kFd ? "file descriptor" : "fabric handle"),
                      status);
  }
  return AllocationRef(
      std::make_shared<const CudaAllocation>(id, bytes, device_, OwnedHandle(imported), type));
}

Result<std::unique_ptr<AddressRange>> CudaMemory::reserve(std::size_t bytes,
                                                          std::size_t alignment) {
  ORIEL_CHECK(check_reservation(bytes, alignment));
  ORIEL_TRY(const CudaScope scope, device_->enter());
  const std::size_t rounded = round_up(bytes, granularity());
  CUdeviceptr base = 0;
  ORIEL_CHECK(cuda_status(
      fmt::format("reserving {} bytes of addresses on GPU {}", rounded, device_->ordinal),
      cuda().mem_address_reserve(&base, rounded, std::max(alignment, granularity()), 0, 0)));
  return std::unique_ptr<AddressRange>(std::make_unique<CudaRange>(device_, base, rounded));
}

Result<std::unique_ptr<Mapping>> CudaMemory::map(AddressRange& range, std::byte* at,
                                                 AllocationRef allocation) {
  auto* cuda_range = dynamic_cast<CudaRange*>(&range);
  const auto* memory = dynamic_cast<const CudaAllocation*>(allocation.get());
  if (cuda_range == nullptr || memory == nullptr) {
    return Error(ErrorCode::internal,
                 "mapping GPU memory: the range or the memory is not of a GPU");
  }
  ORIEL_TRY(const CudaScope scope, device_->enter());
  auto mapping = std::make_unique<CudaMapping>(device_, *cuda_range, at, std::move(allocation));
  ORIEL_CHECK(mapping->map(*memory, granularity()));
  return std::unique_ptr<Mapping>(std::move(mapping));
}

Status CudaMapping::map(const CudaAllocation& memory, std::size_t granularity) {
  const std::size_t bytes = memory.bytes();
  ORIEL_CHECK(range_->occupancy().take(base_, bytes, granularity));
  taken_ = true;
  ORIEL_CHECK(cuda_status(fmt::format("mapping {} bytes on GPU {}", bytes, device_->ordinal),
                          cuda().mem_map(device_pointer(base_), bytes, 0, memory.handle(), 0)));
  mapped_ = true;
  // Grants access to this device only: each rank maps its own view, even if ranks share a process.
  CUmemAccessDesc access{};
  access.location = device_location(device_->ordinal);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult status = cuda().mem_set_access(device_pointer(base_), bytes, &access, 1);
  if (status != CUDA_SUCCESS) {
    return cuda_error(fmt::format("giving GPU {} access to {} bytes", device_->ordinal, bytes),
                      status)
        .with_hint("check that the GPUs reach each other (nvidia-smi topo -p2p rw)");
  }
  return {};
}

Result<int> attribute(CUdevice device, CUdevice_attribute which) {
  int value = 0;
  ORIEL_CHECK(cuda_status("reading a device attribute",
                          cuda().device_get_attribute(&value, which, device)));
  return value;
}

Result<std::size_t> granularity_of(int ordinal, CUmemAllocationGranularity_flags which) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = device_location(ordinal);
  wanted.requestedHandleTypes = kFd;
  std::size_t bytes = 0;
  ORIEL_CHECK(cuda_status("reading the allocation granularity",
                          cuda().mem_get_allocation_granularity(&bytes, &wanted, which)));
  if (bytes == 0 || (bytes & (bytes - 1)) != 0) {
    return Error(
        ErrorCode::cuda,
        fmt::format("GPU {} maps memory in steps of {} bytes, no power of two", ordinal, bytes));
  }
  return bytes;
}

Result<DeviceRef> open_device(int ordinal) {
  ORIEL_CHECK(cuda_ready());
  CUdevice device = 0;
  ORIEL_CHECK(
      cuda_status(fmt::format("opening GPU {}", ordinal), cuda().device_get(&device, ordinal)));
  ORIEL_TRY(const int mappable,
            attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
  ORIEL_TRY(const int exportable,
            attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
  if (mappable == 0 || exportable == 0) {
    return Error(ErrorCode::cuda,
                 fmt::format("GPU {} cannot share memory between processes (virtual memory "
                             "management: {}, file descriptors: {})",
                             ordinal, mappable != 0, exportable != 0));
  }
  ORIEL_TRY(const int rdma,
            attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
  // A driver that does not know fabric handles does not know this attribute either.
  const Result<int> fabric = attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
  ORIEL_TRY(const std::size_t minimum, granularity_of(ordinal, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  ORIEL_TRY(const std::size_t recommended,
            granularity_of(ordinal, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  ORIEL_TRY(PrimaryContext context, PrimaryContext::retain(device));
  return DeviceRef(new Device{ordinal, std::move(context), minimum, std::max(minimum, recommended),
                              rdma != 0, fabric.ok() && *fabric != 0});
}

}  // namespace

Result<std::unique_ptr<Memory>> make_cuda_memory(int device) {
  ORIEL_TRY(DeviceRef opened, open_device(device));
  return std::unique_ptr<Memory>(std::make_unique<CudaMemory>(std::move(opened)));
}

Result<Memory*> cuda_memory(int device) {
  static std::mutex mutex;
  // Never destroyed: the driver may be unloaded before static objects are destroyed.
  static auto* const memories = new std::map<int, std::unique_ptr<Memory>>;
  const std::lock_guard lock(mutex);
  const auto found = memories->find(device);
  if (found != memories->end()) return found->second.get();
  ORIEL_TRY(std::unique_ptr<Memory> made, make_cuda_memory(device));
  return memories->emplace(device, std::move(made)).first->second.get();
}

}  // namespace oriel::window
