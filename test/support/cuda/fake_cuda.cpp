// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "support/cuda/fake_cuda.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/cuda/fake_cuda_state.hpp"

namespace oriel::test {

FakeCuda::State* fake = nullptr;
thread_local std::vector<CUcontext> context_stack;
thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

int current_device() {
  if (context_stack.empty()) return -1;
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(context_stack.back()) - 0xc0de0);
}

bool breaks_capture(const char* call) {
  if (fake->foreign_captures == 0 || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  fake->violations.push_back(fmt::format("{} would have broken another thread's capture", call));
  return true;
}

namespace {

using Lock = std::lock_guard<std::mutex>;

CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(0xc0de0 + device));
}

template <typename... Args>
CUresult refuse(Args...) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
template <typename... Args>
void fill(CUresult (*&member)(Args...)) {
  member = refuse<Args...>;
}

// Devices and contexts.

CUresult device_get_count(int* count) {
  *count = fake->options.devices;
  return CUDA_SUCCESS;
}

CUresult device_get(CUdevice* device, int ordinal) {
  *device = ordinal;
  return has_device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult device_get_attribute(int* value, CUdevice_attribute which, CUdevice device) {
  if (!has_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value = 1;
  if (which == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) *value = fake->options.fabric;
  if (which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) {
    *value = fake->options.multiprocessors;
  }
  return CUDA_SUCCESS;
}

CUresult device_can_access_peer(int* can, CUdevice from, CUdevice to) {
  const int clique = fake->options.clique;
  const int first = fake->options.first_device;
  const bool near = clique == 0 || (first + from) / clique == (first + to) / clique;
  *can = fake->options.peer_access && near;
  return CUDA_SUCCESS;
}

CUresult primary_retain(CUcontext* context, CUdevice device) {
  const Lock lock(fake->mutex);
  ++fake->contexts[static_cast<std::size_t>(device)];
  *context = context_of(device);
  return CUDA_SUCCESS;
}

CUresult primary_release(CUdevice device) {
  const Lock lock(fake->mutex);
  int& references = fake->contexts[static_cast<std::size_t>(device)];
  if (references == 0) return fake->violate("a primary context was released once too often");
  --references;
  return CUDA_SUCCESS;
}

CUresult push(CUcontext context) {
  context_stack.push_back(context);
  const Lock lock(fake->mutex);
  const int device = current_device();
  if (!has_device(device) || fake->contexts[static_cast<std::size_t>(device)] == 0) {
    context_stack.pop_back();
    return fake->violate("a context that is not retained was entered");
  }
  return CUDA_SUCCESS;
}

CUresult pop(CUcontext* context) {
  const Lock lock(fake->mutex);
  if (context_stack.empty()) return fake->violate("a context was left that was not entered");
  *context = context_stack.back();
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult exchange_mode(CUstreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

// Physical memory.

CUresult get_granularity(std::size_t* bytes, const CUmemAllocationProp*,
                         CUmemAllocationGranularity_flags) {
  *bytes = fake->options.granularity;
  return CUDA_SUCCESS;
}

std::size_t physical_bytes() {
  std::map<Physical*, std::size_t> distinct;
  for (const auto& [handle, entry] : fake->handles) {
    distinct[entry.first.get()] = entry.first->bytes;
  }
  for (const auto& [at, mapped] : fake->mappings) {
    distinct[mapped.physical.get()] = mapped.physical->bytes;
  }
  std::size_t sum = 0;
  for (const auto& [physical, bytes] : distinct) sum += bytes;
  return sum;
}

CUmemGenericAllocationHandle new_handle(PhysicalRef physical) {
  const CUmemGenericAllocationHandle handle = fake->next_handle++;
  fake->handles.emplace(handle, std::pair(std::move(physical), 1));
  return handle;
}

CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                const CUmemAllocationProp* properties, unsigned long long flags) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemCreate")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (flags != 0 || bytes == 0 || bytes % fake->options.granularity != 0) {
    return fake->violate(fmt::format("cuMemCreate of {} bytes", bytes));
  }
  if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0 &&
      (!fake->options.fabric || !fake->options.fabric_permitted)) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (physical_bytes() + bytes > fake->options.memory_bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  auto physical = std::make_shared<Physical>();
  physical->fd = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  physical->bytes = bytes;
  physical->properties = *properties;
  if (physical->fd < 0 || ::ftruncate(physical->fd, static_cast<off_t>(bytes)) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = new_handle(std::move(physical));
  return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemRelease")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const auto found = fake->handles.find(handle);
  if (found == fake->handles.end()) return fake->violate("a handle was released once too often");
  if (--found->second.second == 0) fake->handles.erase(found);
  return CUDA_SUCCESS;
}

CUresult export_handle(void* out, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long) {
  const Lock lock(fake->mutex);
  const auto found = fake->handles.find(handle);
  if (found == fake->handles.end()) return fake->violate("a handle was exported after its release");
  const Physical& physical = *found->second.first;
  if ((physical.properties.requestedHandleTypes & type) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    // Names the memfd by a path that another process of the same user can open.
    std::memset(out, 0, sizeof(CUmemFabricHandle));
    const auto path = fmt::format("/proc/{}/fd/{}", ::getpid(), physical.fd);
    std::memcpy(out, path.c_str(), std::min(path.size(), sizeof(CUmemFabricHandle) - 1));
    return CUDA_SUCCESS;
  }
  const int copy = ::fcntl(physical.fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  std::memcpy(out, &copy, sizeof copy);
  return CUDA_SUCCESS;
}

CUresult import_handle(CUmemGenericAllocationHandle* handle, void* from,
                       CUmemAllocationHandleType type) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemImportFromShareableHandle"))
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC &&
      (!fake->options.fabric || !fake->options.fabric_permitted)) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  const int fd =
      type == CU_MEM_HANDLE_TYPE_FABRIC
          ? ::open(static_cast<const char*>(from), O_RDWR | O_CLOEXEC)
          : ::fcntl(static_cast<int>(reinterpret_cast<std::uintptr_t>(from)), F_DUPFD_CLOEXEC, 0);
  auto physical = std::make_shared<Physical>();
  physical->fd = fd;
  struct stat info {};
  char target[64] = {};
  const auto link = fmt::format("/proc/self/fd/{}", fd);
  if (fd < 0 || ::fstat(fd, &info) != 0 ||
      ::readlink(link.c_str(), target, sizeof target - 1) < 0 ||
      std::strncmp(target, "/memfd:fake-cuda", 16) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  physical->bytes = static_cast<std::size_t>(info.st_size);
  physical->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  physical->properties.requestedHandleTypes = type;
  *handle = new_handle(std::move(physical));
  return CUDA_SUCCESS;
}

CUresult get_properties(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  const Lock lock(fake->mutex);
  const auto found = fake->handles.find(handle);
  if (found == fake->handles.end()) return fake->violate("a handle was used after its release");
  *properties = found->second.first->properties;
  return CUDA_SUCCESS;
}

// Addresses and mappings.

CUresult reserve(CUdeviceptr* base, std::size_t bytes, std::size_t alignment, CUdeviceptr,
                 unsigned long long) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemAddressReserve")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (bytes == 0 || bytes % fake->options.granularity != 0) {
    return fake->violate(fmt::format("cuMemAddressReserve of {} bytes", bytes));
  }
  if (alignment == 0) alignment = fake->options.granularity;
  void* raw = ::mmap(nullptr, bytes + alignment, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto begin = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = (begin + alignment - 1) / alignment * alignment;
  if (aligned != begin) ::munmap(raw, aligned - begin);
  ::munmap(reinterpret_cast<void*>(aligned + bytes), begin + alignment - aligned);
  fake->reservations.emplace(aligned, bytes);
  *base = aligned;
  return CUDA_SUCCESS;
}

CUresult address_free(CUdeviceptr base, std::size_t bytes) {
  const Lock lock(fake->mutex);
  const auto found = fake->reservations.find(base);
  if (found == fake->reservations.end() || found->second != bytes) {
    return fake->violate("addresses were freed that were not reserved so");
  }
  const auto inside = fake->mappings.lower_bound(base);
  if (inside != fake->mappings.end() && inside->first < base + bytes) {
    return fake->violate("addresses were freed with a mapping in them");
  }
  fake->reservations.erase(found);
  ::munmap(reinterpret_cast<void*>(base), bytes);
  return CUDA_SUCCESS;
}

CUresult map_memory(CUdeviceptr at, std::size_t bytes, std::size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemMap")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const auto found = fake->handles.find(handle);
  if (found == fake->handles.end()) return fake->violate("a handle was mapped after its release");
  const auto range = containing(fake->reservations, at);
  if (range == fake->reservations.end() || bytes > range->first + range->second - at) {
    return fake->violate("memory was mapped outside reserved addresses");
  }
  if (offset != 0 || at % fake->options.granularity != 0 || bytes == 0 ||
      bytes % fake->options.granularity != 0) {
    return fake->violate("memory was mapped with an offset, or between granules");
  }
  const auto next = fake->mappings.lower_bound(at);
  if ((next != fake->mappings.end() && next->first < at + bytes) ||
      containing(fake->mappings, at) != fake->mappings.end()) {
    return fake->violate("memory was mapped over mapped memory");
  }
  PhysicalRef physical = found->second.first;
  if (bytes > physical->bytes) return CUDA_ERROR_INVALID_VALUE;  // a peer can cause this
  if (::mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd,
             0) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  fake->mappings.emplace(at, Mapped{bytes, std::move(physical), false});
  return CUDA_SUCCESS;
}

CUresult unmap(CUdeviceptr at, std::size_t bytes) {
  const Lock lock(fake->mutex);
  if (breaks_capture("cuMemUnmap")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  const auto found = fake->mappings.find(at);
  if (found == fake->mappings.end() || found->second.bytes != bytes) {
    return fake->violate("memory was unmapped that was not mapped so");
  }
  if (yet_to_copy(at, bytes)) {
    return fake->violate("memory was unmapped that a stream is yet to copy");
  }
  ::mmap(reinterpret_cast<void*>(at), bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  fake->mappings.erase(found);
  return CUDA_SUCCESS;
}

CUresult set_access(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc* access,
                    std::size_t count) {
  const Lock lock(fake->mutex);
  const auto found = fake->mappings.find(at);
  if (found == fake->mappings.end() || found->second.bytes != bytes || count == 0) {
    return fake->violate("access was set on memory that is not mapped so");
  }
  const int owner = found->second.physical->properties.location.id;
  if (access->location.id != owner && !fake->options.peer_access) return CUDA_ERROR_INVALID_DEVICE;
  ::mprotect(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE);
  found->second.accessible = true;
  return CUDA_SUCCESS;
}

CUresult retain_handle(CUmemGenericAllocationHandle* handle, void* address) {
  const Lock lock(fake->mutex);
  const auto found = containing(fake->mappings, reinterpret_cast<std::uintptr_t>(address));
  if (found == fake->mappings.end()) return CUDA_ERROR_INVALID_VALUE;
  for (auto& [known, entry] : fake->handles) {
    if (entry.first == found->second.physical) {
      ++entry.second;
      *handle = known;
      return CUDA_SUCCESS;
    }
  }
  *handle = new_handle(found->second.physical);
  return CUDA_SUCCESS;
}

CUresult get_address_range(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr address) {
  const Lock lock(fake->mutex);
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  const auto found = containing(fake->mappings, address);
  if (found == fake->mappings.end()) return CUDA_ERROR_NOT_FOUND;
  *base = found->first;
  *bytes = found->second.bytes;
  return CUDA_SUCCESS;
}

CUresult pointer_attributes(unsigned count, CUpointer_attribute* names, void** values,
                            CUdeviceptr address) {
  const Lock lock(fake->mutex);
  const auto found = containing(fake->buffers, address);
  for (unsigned i = 0; i < count; ++i) {
    unsigned value = 0;
    if (names[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE && found != fake->buffers.end()) {
      value = found->second.on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    }
    std::memcpy(values[i], &value, sizeof value);
  }
  return CUDA_SUCCESS;
}

CUresult error_name(CUresult status, const char** name) {
  static const std::map<CUresult, const char*> names{
      {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
      {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
      {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
      {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
  };
  const auto found = names.find(status);
  if (found == names.end()) return CUDA_ERROR_INVALID_VALUE;
  *name = found->second;
  return CUDA_SUCCESS;
}

CudaTable make_table() {
  CudaTable table{};
#define ORIEL_DETAIL_FILL(member, symbol, version) fill(table.member);
  ORIEL_CUDA_CALLS(ORIEL_DETAIL_FILL)
#undef ORIEL_DETAIL_FILL
  table.init = [](unsigned) { return CUDA_SUCCESS; };
  table.get_error_name = error_name;
  table.device_get_count = device_get_count;
  table.device_get = device_get;
  table.device_get_attribute = device_get_attribute;
  table.device_can_access_peer = device_can_access_peer;
  table.device_primary_ctx_retain = primary_retain;
  table.device_primary_ctx_release = primary_release;
  table.ctx_push_current = push;
  table.ctx_pop_current = pop;
  table.thread_exchange_stream_capture_mode = exchange_mode;
  table.mem_get_allocation_granularity = get_granularity;
  table.mem_create = create;
  table.mem_release = release;
  table.mem_export_to_shareable_handle = export_handle;
  table.mem_import_from_shareable_handle = import_handle;
  table.mem_get_allocation_properties_from_handle = get_properties;
  table.mem_address_reserve = reserve;
  table.mem_address_free = address_free;
  table.mem_map = map_memory;
  table.mem_unmap = unmap;
  table.mem_set_access = set_access;
  table.mem_retain_allocation_handle = retain_handle;
  table.mem_get_address_range = get_address_range;
  table.pointer_get_attributes = pointer_attributes;
  add_streams(table);
  add_launches(table);
  add_queries(table);
  return table;
}

}  // namespace

FakeCuda::FakeCuda() : FakeCuda(Options{}) {}

FakeCuda::FakeCuda(Options options) : state_(std::make_unique<State>()) {
  state_->options = options;
  state_->table = make_table();
  state_->contexts.resize(static_cast<std::size_t>(options.devices));
  fake = state_.get();
  scoped_ = std::make_unique<ScopedCudaTable>(state_->table);
}

FakeCuda::~FakeCuda() {
  scoped_ = nullptr;
  for (const auto& [base, bytes] : state_->reservations) {
    ::munmap(reinterpret_cast<void*>(base), bytes);
  }
  for (const auto& [base, buffer] : state_->buffers) std::free(reinterpret_cast<void*>(base));
  fake = nullptr;
}

FakeCuda::Held FakeCuda::held() const {
  const Lock lock(state_->mutex);
  Held held;
  for (const auto& [handle, entry] : state_->handles) held.handle_references += entry.second;
  held.reservations = static_cast<int>(state_->reservations.size());
  held.mappings = static_cast<int>(state_->mappings.size());
  for (const int references : state_->contexts) held.contexts += references;
  held.buffers = static_cast<int>(state_->buffers.size());
  held.streams = static_cast<int>(state_->streams.size());
  held.events = static_cast<int>(state_->events.size());
  held.physical_bytes = physical_bytes();
  return held;
}

std::vector<std::string> FakeCuda::violations() const {
  const Lock lock(state_->mutex);
  return state_->violations;
}

void FakeCuda::begin_foreign_capture() {
  const Lock lock(state_->mutex);
  ++state_->foreign_captures;
}

void FakeCuda::end_foreign_capture() {
  const Lock lock(state_->mutex);
  --state_->foreign_captures;
}

void FakeCuda::fill_devices(bool full) {
  const Lock lock(state_->mutex);
  state_->devices_full = full;
}

int FakeCuda::copies() const {
  const Lock lock(state_->mutex);
  return state_->copies;
}

int FakeCuda::context_depth() const {
  return static_cast<int>(context_stack.size());
}

CUstreamCaptureMode FakeCuda::capture_mode() const {
  return thread_mode;
}

std::ostream& operator<<(std::ostream& out, const FakeCuda::Held& held) {
  return out << fmt::format(
             "{} handle references, {} reservations, {} mappings, {} contexts, {} buffers, {} "
             "streams, {} events, {} bytes",
             held.handle_references, held.reservations, held.mappings, held.contexts, held.buffers,
             held.streams, held.events, held.physical_bytes);
}

}  // namespace oriel::test
