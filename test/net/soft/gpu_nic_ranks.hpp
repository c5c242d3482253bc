// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "base/cuda_scope.hpp"
#include "net/copy/data_mover_cuda.hpp"
#include "net/mlx5/queue_pages_cuda.hpp"
#include "net/process/nic_process.hpp"
#include "net/soft/gpu_nic_kernels.hpp"
#include "net/soft/nic_soft.hpp"
#include "net/soft/nic_thread.hpp"
#include "net/soft/soft_send_queue.hpp"
#include "net/support/run_nic.hpp"
#include "net/wire/ring_pair.hpp"

/// Two ranks on GPUs as threads of this process, each with a software NIC that a thread of its own
/// drives, and for which that thread copies or a process of the GPU's. Everything here throws
/// std::runtime_error where CUDA refuses something.
namespace oriel::net::test {

inline void must(int status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " +
                           cudaGetErrorString(static_cast<cudaError_t>(status)));
}
inline void must_driver(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS) throw std::runtime_error(cuda_error(what, status).to_string());
}
template <class T>
T must_have(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().to_string());
  return std::move(result).value();
}

/// Memory of one GPU that both GPUs can reach, as windows are.
class SharedGpuMemory {
 public:
  SharedGpuMemory(int device, std::size_t bytes, const std::vector<int>& reachers) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = device_location(device);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    std::size_t unit = 0;
    must_driver(cuda().mem_get_allocation_granularity(&unit, &properties,
                                                      CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                "granularity");
    bytes_ = (bytes + unit - 1) / unit * unit;
    must_driver(cuda().mem_create(&handle_, bytes_, &properties, 0), "cuMemCreate");
    must_driver(cuda().mem_address_reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
    must_driver(cuda().mem_map(address_, bytes_, 0, handle_, 0), "cuMemMap");
    std::vector<CUmemAccessDesc> access;
    for (const int reacher : reachers) {
      access.push_back({device_location(reacher), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
    must_driver(cuda().mem_set_access(address_, bytes_, access.data(), access.size()),
                "cuMemSetAccess");
  }
  ~SharedGpuMemory() {
    static_cast<void>(cuda().mem_unmap(address_, bytes_));
    static_cast<void>(cuda().mem_address_free(address_, bytes_));
    static_cast<void>(cuda().mem_release(handle_));
  }
  SharedGpuMemory(const SharedGpuMemory&) = delete;
  SharedGpuMemory& operator=(const SharedGpuMemory&) = delete;
  CUdeviceptr address() const { return address_; }
  std::size_t bytes() const { return bytes_; }
  AllocationHandle handle() const {
    int fd = -1;
    must_driver(cuda().mem_export_to_shareable_handle(&fd, handle_,
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                "cuMemExportToShareableHandle");
    return OwnedFd(fd);
  }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  std::size_t bytes_ = 0;
};

/// Pinned memory of the host, zeroed.
template <class T>
class Pinned {
 public:
  explicit Pinned(std::size_t count = 1) {
    void* made = nullptr;
    must(cudaHostAlloc(&made, count * sizeof(T), cudaHostAllocPortable), "cudaHostAlloc");
    std::memset(made, 0, count * sizeof(T));
    words_ = static_cast<T*>(made);
  }
  ~Pinned() { cudaFreeHost(words_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  T* get() const { return words_; }
  T& operator*() const { return *words_; }
  T& operator[](std::size_t at) const { return words_[at]; }

 private:
  T* words_ = nullptr;
};

struct GpuStream {
  explicit GpuStream(int device) {
    must(cudaSetDevice(device), "cudaSetDevice");
    must(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~GpuStream() { cudaStreamDestroy(handle); }
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  cudaStream_t handle = nullptr;
};

/// The process that copies on a GPU, for as long as this program runs.
inline std::shared_ptr<NicProcess> nic_process_of(int device) {
  static auto* const processes = new std::map<int, std::shared_ptr<NicProcess>>;
  auto& process = (*processes)[device];
  if (process == nullptr) {
    const char* const named = std::getenv("ORIEL_NIC_PROGRAM");
    CUuuid uuid{};
    must_driver(cuda().device_get_uuid(&uuid, device), "cuDeviceGetUuid");
    NicProcess::Options options;
    options.program = must_have(NicProcess::find_program(named != nullptr ? named : ""));
    std::memcpy(options.gpu.data(), uuid.bytes, options.gpu.size());
    process = must_have(NicProcess::start(options));
    const Status ready = process->await_ready(Deadline::after(std::chrono::seconds(20)));
    if (!ready.ok()) throw std::runtime_error(ready.error().to_string());
  }
  return process;
}

inline constexpr std::size_t kSignalBytes = 4096;  // behind the data

struct GpuRank {
  GpuRank(int on, std::size_t bytes, const std::vector<int>& devices, std::unique_ptr<Wire> wire,
          bool by_process, DoorbellMode mode, std::uint32_t fetch_slots)
      : device(on), data_bytes(bytes) {
    must(cudaSetDevice(device), "cudaSetDevice");
    must(cudaFree(nullptr), "cudaFree");
    must(load_gpu_nic_kernels(), "loading kernels");
    memory = std::make_unique<SharedGpuMemory>(device, bytes + kSignalBytes, devices);
    must(cudaMemset(data(), 0, bytes + kSignalBytes), "cudaMemset");
    must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    CudaMover::Options options;
    options.device = device;
    if (by_process) {
      process = nic_process_of(device);
      show(*memory);
      mover = std::make_unique<CudaMover>(
          must_have(NicProcess::open_stream(process, options.slots,
                                            static_cast<std::uint32_t>(options.slot_bytes))),
          options.slots);
    } else {
      mover = must_have(CudaMover::create(options));
    }
    pages = must_have(CudaQueuePages::create(device));
    nic = std::make_unique<NicSoft>(NicSoft::Options{.gpu = mover.get()});
    nic->add_wire(std::move(wire));
    range.address = memory->address();
    range.bytes = bytes + kSignalBytes;
    range.memory = data();
    range.access = kLocalWrite | kRemoteWrite | kRemoteRead | kRemoteAtomic;
    range.place = MemoryPlace::gpu;
    range.own_words = true;
    key = must_have(nic->register_memory(range));
    region.address = range.address;
    region.bytes = range.bytes;
    region.keys[0] = key;
    SendQueue::Options queue_options;
    queue_options.pages = pages.get();
    queue_options.piece_bytes = 64 << 10;
    queue_options.receives = 256;
    queue_options.mode = mode;
    queue_options.fetch_slots = fetch_slots;
    queue.emplace(must_have(SendQueue::create(*nic, queue_options)));
  }
  ~GpuRank() {
    thread.reset();
    queue.reset();
    nic.reset();
    mover.reset();
    for (const std::byte* const base : shown) process->hide(base);
  }
  GpuRank(const GpuRank&) = delete;
  GpuRank& operator=(const GpuRank&) = delete;
  /// To the process, if there is one.
  void show(const SharedGpuMemory& other) {
    if (process == nullptr) return;
    auto* const base = reinterpret_cast<std::byte*>(other.address());
    const Status known = process->show(base, other.bytes(), other.handle());
    if (!known.ok()) throw std::runtime_error(known.error().to_string());
    shown.push_back(base);
  }
  std::byte* data() const { return reinterpret_cast<std::byte*>(memory->address()); }
  void start() { thread.emplace(run_nic(*nic)); }
  /// Driver and bytes, past any kernel.
  Bytes read(GpuStream& stream) const {
    Bytes bytes(data_bytes);
    must(cudaMemcpyAsync(bytes.data(), data(), data_bytes, cudaMemcpyDefault, stream.handle),
         "cudaMemcpyAsync");
    must(cudaStreamSynchronize(stream.handle), "reading memory");
    return bytes;
  }
  void write(GpuStream& stream, const Bytes& bytes) const {
    must(cudaMemcpyAsync(data(), bytes.data(), bytes.size(), cudaMemcpyDefault, stream.handle),
         "cudaMemcpyAsync");
    must(cudaStreamSynchronize(stream.handle), "writing memory");
  }

  int device;
  std::size_t data_bytes;
  std::unique_ptr<SharedGpuMemory> memory;
  std::shared_ptr<NicProcess> process;  // null: this one copies
  std::vector<const std::byte*> shown;
  std::unique_ptr<CudaMover> mover;
  std::unique_ptr<CudaQueuePages> pages;
  std::unique_ptr<NicSoft> nic;
  MemoryRange range;
  std::uint32_t key = 0;
  device::queue::Region region;
  std::optional<SendQueue> queue;
  std::optional<NicThread> thread;
};

struct GpuRanks {
  GpuRanks(int first, int second, bool direct, std::size_t bytes, bool by_process,
           DoorbellMode mode = DoorbellMode::alone,
           std::uint32_t fetch_slots = SendQueue::Options().fetch_slots)
      : a(first, bytes, devices_of(first, second), std::move(rings.a), by_process, mode,
          fetch_slots),
        b(second, bytes, devices_of(first, second), std::move(rings.b), by_process, mode,
          fetch_slots) {
    if (direct) {
      a.show(*b.memory);
      b.show(*a.memory);
      must_be(a.nic->map_peer_memory(2, b.key, b.range));
      must_be(b.nic->map_peer_memory(1, a.key, a.range));
      a.nic->set_reached(2, a.key, true);
      b.nic->set_reached(1, b.key, true);
    }
    must_be(a.queue->connect({0, {2}, b.queue->number(), 0, 2}));
    must_be(b.queue->connect({0, {1}, a.queue->number(), 0, 1}));
    a.start();
    b.start();
  }
  static std::vector<int> devices_of(int first, int second) {
    if (first == second) return {first};
    return {first, second};
  }
  static void must_be(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.error().to_string());
  }
  GpuPath path(bool from_a) const {
    const GpuRank& here = from_a ? a : b;
    const GpuRank& there = from_a ? b : a;
    GpuPath made;
    made.queue = here.queue->view();
    made.local = here.region;
    made.remote = there.region;
    made.own_signal = here.data_bytes;
    made.far_signal = there.data_bytes;
    made.control.timeout_ns = 20'000'000'000;
    return made;
  }

  RingPair rings{std::size_t{1} << 20};
  GpuRank a, b;
};

}  // namespace oriel::net::test
