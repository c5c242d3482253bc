// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "oriel/device/window.hpp"

#include "base/cuda_scope.hpp"
#include "base/process_number.hpp"
#include "base/try.hpp"
#include "comm/device/device.hpp"
#include "comm/device/executor_cuda.hpp"
#include "comm/device/nic_process_starter.hpp"
#include "comm/device/rank_affinity.hpp"
#include "comm/device/window_sink.hpp"
#include "kernels/cuda/loaded_kernels.hpp"
#include "net/copy/copy_engine_cuda.hpp"
#include "net/mlx5/mlx5_memory_cuda.hpp"
#include "net/mlx5/queue_pages_cuda.hpp"
#include "shadow/shadow_pool_cuda.hpp"
#include "topo/choice/gpu_rank_info.hpp"
#include "topo/choice/placement.hpp"
#include "topo/machine/process_machine.hpp"
#include "window/memory/memory_cuda.hpp"

namespace oriel::comm {
namespace {

/// Owns a stream of the library; the stream does not synchronize with the null stream.
class OwnedStream {
 public:
  static Result<OwnedStream> create() {
    CUstream stream = nullptr;
    ORIEL_CHECK(
        cuda_status("creating a stream", cuda().stream_create(&stream, CU_STREAM_NON_BLOCKING)));
    return OwnedStream(stream);
  }
  OwnedStream(OwnedStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  OwnedStream& operator=(OwnedStream&&) = delete;
  ~OwnedStream() {
    if (stream_ != nullptr) static_cast<void>(cuda().stream_destroy(stream_));
  }
  CUstream get() const { return stream_; }

 private:
  explicit OwnedStream(CUstream stream) : stream_(stream) {}
  CUstream stream_;
};

class CudaNoticeMemory final : public NoticeMemory {
 public:
  static Result<std::unique_ptr<NoticeMemory>> make(CUcontext context) {
    void* host = nullptr;
    CUdeviceptr device = 0;
    ORIEL_CHECK(
        cuda_status("allocating pinned memory",
                    cuda().mem_host_alloc(&host, sizeof(Notices),
                                          CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)));
    std::unique_ptr<CudaNoticeMemory> memory(new CudaNoticeMemory(context, new (host) Notices));
    ORIEL_CHECK(
        cuda_status("mapping pinned memory", cuda().mem_host_get_device_pointer(&device, host, 0)));
    memory->device_ = reinterpret_cast<Notices*>(device);
    return std::unique_ptr<NoticeMemory>(std::move(memory));
  }
  ~CudaNoticeMemory() override {
    // Frees even if the context cannot be entered: any current context of the thread suffices.
    const auto scope = CudaScope::enter(context_);
    static_cast<void>(cuda().mem_free_host(host_));
  }
  Notices& host() override { return *host_; }
  Notices* on_device() override { return device_; }

 private:
  CudaNoticeMemory(CUcontext context, Notices* host) : context_(context), host_(host) {}
  CUcontext context_;
  Notices* host_;
  Notices* device_ = nullptr;
};

/// Fresh memory that a stream is filling. Must not be destroyed before the stream has completed.
class Filling {
 public:
  static Result<std::unique_ptr<Filling>> begin(window::Memory& memory, CUcontext context,
                                                std::size_t bytes, window::Backing backing) {
    ORIEL_TRY(const auto scope, CudaScope::enter(context));
    ORIEL_TRY(OwnedStream stream, OwnedStream::create());
    ORIEL_TRY(void* const base, memory.allocate(bytes, backing));
    return std::unique_ptr<Filling>(new Filling(memory, context, std::move(stream), base));
  }
  ~Filling() {
    const auto scope = CudaScope::enter(context_);
    stream_.reset();
    if (base_ != nullptr) static_cast<void>(memory_.free(base_));
  }
  Filling(const Filling&) = delete;
  Filling& operator=(const Filling&) = delete;

  /// Sets the words in bytes [begin, end) to `value`. take() returns errors of set(), copy() and
  /// ended().
  void set(std::uint64_t begin, std::uint64_t end, unsigned value) {
    enqueue([&] {
      return cuda().memset_d32_async(at(begin), value, (end - begin) / 4, stream_->get());
    });
  }
  void copy(std::uint64_t begin, std::vector<std::byte> bytes) {
    source_ = std::move(bytes);
    enqueue([&] {
      return cuda().memcpy_h_to_d_async(at(begin), source_.data(), source_.size(), stream_->get());
    });
  }
  /// Returns whether the stream has completed. Polls also after a failure, since work enqueued
  /// earlier still writes to the memory.
  bool ended() {
    const auto scope = CudaScope::enter(context_);  // may fail: the stream knows its own context
    const CUresult status = cuda().stream_query(stream_->get());
    if (status == CUDA_ERROR_NOT_READY) return false;
    if (status_.ok()) status_ = cuda_status("waiting for the memory of a communicator", status);
    return true;
  }
  /// Returns the memory; call it only after ended() has returned true.
  Result<void*> take() {
    ORIEL_CHECK(status_);
    return std::exchange(base_, nullptr);
  }

 private:
  Filling(window::Memory& memory, CUcontext context, OwnedStream stream, void* base)
      : memory_(memory), context_(context), stream_(std::move(stream)), base_(base) {}
  CUdeviceptr at(std::uint64_t offset) const {
    return reinterpret_cast<CUdeviceptr>(base_) + offset;
  }
  template <class Call>
  void enqueue(const Call& call) {
    if (!status_.ok()) return;
    const auto scope = CudaScope::enter(context_);
    status_ = scope.ok() ? cuda_status("clearing the memory of a communicator", call())
                         : Status(scope.error());
  }

  window::Memory& memory_;
  CUcontext context_;
  std::optional<OwnedStream> stream_;
  void* base_;
  std::vector<std::byte> source_;
  Status status_;
};

class CudaDevice final : public Device {
 public:
  static Result<std::unique_ptr<CudaDevice>> make(int ordinal) {
    CUdevice handle = 0;
    ORIEL_CHECK(cuda_status("opening a device", cuda().device_get(&handle, ordinal)));
    ORIEL_TRY(auto context, PrimaryContext::retain(handle));
    ORIEL_TRY(auto* const memory, window::cuda_memory(ordinal));
    std::unique_ptr<CudaDevice> device(new CudaDevice(ordinal, std::move(context), *memory));
    ORIEL_CHECK(cuda_status("asking for the size of a device",
                            cuda().device_total_mem(&device->memory_bytes_, handle)));
    int multiprocessors = 0;
    ORIEL_CHECK(
        cuda_status("asking for the multiprocessors of a device",
                    cuda().device_get_attribute(&multiprocessors,
                                                CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle)));
    // Kernels of this library are compiled for one CTA per multiprocessor.
    device->resident_ctas_ = std::min<int>(multiprocessors, topo::kCtasMost);
    device->budget_.emplace(device->resident_ctas_);
    return device;
  }

  kernels::Backend backend() const override { return kernels::Backend::cuda; }
  int ordinal() const override { return ordinal_; }
  window::Memory& memory() override { return memory_; }

  Result<topo::RankInfo> rank_info(const topo::NodeIdentity& node, const Settings& settings,
                                   topo::Wanted wanted) override;
  Task<Result<void*>> make_scratch(EventLoop& loop, kernels::ScratchLayout layout,
                                   kernels::HierarchyLayout hierarchy,
                                   std::vector<kernels::ChannelLayout> channels,
                                   Deadline deadline) override;
  Task<Result<void*>> make_control(EventLoop& loop, std::size_t bytes, std::size_t offset,
                                   std::vector<std::byte> part, Deadline deadline) override;
  Result<std::unique_ptr<NoticeMemory>> make_notice_memory() override {
    ORIEL_TRY(const auto scope, CudaScope::enter(context_.get()));
    // The GPU polls the notices. The driver allocates them on the NUMA node that the thread
    // prefers.
    const topo::MemoryNodeScope near(affinity_of(*this).memory_node);
    return CudaNoticeMemory::make(context_.get());
  }
  Result<std::unique_ptr<Executor>> make_executor(const CtaBudget::Facts& facts, GraphOrder order,
                                                  bool marks) override {
    return CudaExecutor::make({context_.get(), *budget_, kernels_}, facts, order, marks);
  }
  Result<std::unique_ptr<PooledWindowSink>> make_window_sink(const TeamFacts& facts) override;
  Result<std::shared_ptr<shadow::ShadowPool>> object_pool(std::size_t bytes,
                                                          std::size_t alignment) override {
    return shadow::cuda_pool(ordinal_, bytes, alignment);
  }
  std::shared_ptr<net::NicProcess> begin_nic_process(const Settings& settings) override {
    return nic_starter_.begin(context_.device(), affinity_of(*this).cpus, settings);
  }
  Result<NicMemory> make_nic_memory(std::shared_ptr<net::NicProcess> process) override;
  Result<std::unique_ptr<net::Mlx5Memory>> make_adapter_memory() override;

 private:
  CudaDevice(int ordinal, PrimaryContext context, window::Memory& memory)
      : ordinal_(ordinal),
        context_(std::move(context)),
        memory_(memory),
        kernels_(context_.get()) {}

  Result<std::unique_ptr<Filling>> begin_filling(std::size_t bytes, window::Backing backing);
  Task<Result<void*>> finish(EventLoop& loop, std::unique_ptr<Filling> filling, Deadline deadline);
  /// Frees memory left by calls that timed out, if the GPU has completed its writes by now.
  void drop_ended();

  const int ordinal_;
  PrimaryContext context_;
  window::Memory& memory_;
  std::size_t memory_bytes_ = 0;
  int resident_ctas_ = 1;
  std::optional<CtaBudget> budget_;
  kernels::LoadedKernels kernels_;
  NicProcessStarter nic_starter_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Filling>> unfinished_;
};

Result<topo::RankInfo> CudaDevice::rank_info(const topo::NodeIdentity& node,
                                             const Settings& settings, topo::Wanted wanted) {
  const auto hidden =
      wanted.hidden_gpus ? topo::HiddenGpus::asked_about : topo::HiddenGpus::left_out;
  ORIEL_TRY(const auto machine, topo::process_machine().for_communicators(true, settings, hidden));
  ORIEL_TRY(topo::RankInfo info, topo::gpu_rank_info(node, *machine, ordinal_));
  info.memory_bytes = memory_bytes_;
  info.resident_ctas = static_cast<std::uint16_t>(resident_ctas_);
  info.known_sharers =
      static_cast<std::uint16_t>(std::min<int>(budget_->most_sharers(), topo::kCtasMost));
  topo::add_network(info, settings, wanted);
  info.fabric_handles = info.fabric_handles && memory_.exports_fabric_handles();
  return info;
}

Result<std::unique_ptr<Filling>> CudaDevice::begin_filling(std::size_t bytes,
                                                           window::Backing backing) {
  drop_ended();
  return Filling::begin(memory_, context_.get(), bytes, backing);
}

void CudaDevice::drop_ended() {
  const std::lock_guard lock(mutex_);
  std::erase_if(unfinished_, [](const auto& filling) { return filling->ended(); });
}

Task<Result<void*>> CudaDevice::finish(EventLoop& loop, std::unique_ptr<Filling> filling,
                                       Deadline deadline) {
  // Polls briskly at first: usually this takes microseconds, less than a timer of the loop.
  constexpr int kBriskPolls = 100;
  const TimePoint begin = loop.clock().now();
  const Duration remaining = std::min<Duration>(deadline.remaining(begin), std::chrono::hours(24));
  const Deadline limit = Deadline::at(begin + remaining - remaining / 4);
  for (int polls = 0; !filling->ended(); ++polls) {
    Status waited;
    if (limit.expired(loop.clock().now())) {
      waited = Error(ErrorCode::timeout,
                     fmt::format("GPU {} has been too busy to clear the memory of a communicator",
                                 ordinal_))
                   .with_hint("let the kernels that fill it end, or raise ORIEL_TIMEOUT");
    } else if (polls < kBriskPolls) {
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    } else {
      waited = co_await loop.sleep_until(Deadline::after(std::chrono::milliseconds(1)));
    }
    if (!waited.ok()) {
      const std::lock_guard lock(mutex_);
      unfinished_.push_back(std::move(filling));
      co_return std::move(waited).error();
    }
  }
  co_return filling->take();
}

Task<Result<void*>> CudaDevice::make_scratch(EventLoop& loop, kernels::ScratchLayout layout,
                                             kernels::HierarchyLayout hierarchy,
                                             std::vector<kernels::ChannelLayout> channels,
                                             Deadline deadline) {
  ORIEL_CO_TRY(auto filling, begin_filling(layout.total_bytes, window::Backing::on_demand));
  // Counters and flags start as zero. Empty slots of sentinel lines are all ones. Rings need no
  // initial value.
  filling->set(0, layout.lines, 0);
  filling->set(layout.lines, layout.rings, ~0u);
  filling->set(hierarchy.counters, hierarchy.regions[0], 0);
  for (const kernels::ChannelLayout& part : channels) filling->set(part.counters, part.rings, 0);
  co_return co_await finish(loop, std::move(filling), deadline);
}

Task<Result<void*>> CudaDevice::make_control(EventLoop& loop, std::size_t bytes, std::size_t offset,
                                             std::vector<std::byte> part, Deadline deadline) {
  ORIEL_CO_TRY(auto filling, begin_filling(bytes, window::Backing::ready));
  filling->set(0, bytes, 0);
  filling->copy(offset, std::move(part));
  co_return co_await finish(loop, std::move(filling), deadline);
}

Result<std::unique_ptr<PooledWindowSink>> CudaDevice::make_window_sink(const TeamFacts& facts) {
  ORIEL_TRY(auto windows, shadow::cuda_pool(ordinal_, sizeof(device::WindowObject),
                                            alignof(device::WindowObject)));
  ORIEL_TRY(auto tables,
            shadow::cuda_pool(ordinal_, PooledWindowSink::table_bytes(facts.world_size), 64));
  return PooledWindowSink::make(std::move(windows), std::move(tables), facts);
}

Result<NicMemory> CudaDevice::make_nic_memory(std::shared_ptr<net::NicProcess> process) {
  // The NIC's thread and the GPU both access this memory.
  const topo::MemoryNodeScope near(affinity_of(*this).memory_node);
  NicMemory made;
  ORIEL_TRY(made.pages, net::CudaQueuePages::create(context_.device()));
  net::CudaCopyEngine::Options options;
  options.device = context_.device();
  if (process == nullptr) {
    ORIEL_TRY(made.engine, net::CudaCopyEngine::create(options));
    return made;
  }
  ORIEL_TRY(auto stream,
            net::NicProcess::open_stream(process, options.slots,
                                         static_cast<std::uint32_t>(options.slot_bytes)));
  made.engine = std::make_unique<net::CudaCopyEngine>(std::move(stream), options.slots);
  made.process = std::move(process);
  return made;
}

Result<std::unique_ptr<net::Mlx5Memory>> CudaDevice::make_adapter_memory() {
  ORIEL_TRY(auto memory, net::Mlx5CudaMemory::create(context_.device()));
  return std::unique_ptr<net::Mlx5Memory>(std::move(memory));
}

}  // namespace

Result<int> cuda_device_count() {
  ORIEL_CHECK(cuda_ready());
  int count = 0;
  ORIEL_CHECK(cuda_status("counting devices", cuda().device_get_count(&count)));
  return count;
}

Result<int> current_cuda_ordinal() {
  CUcontext context = nullptr;
  ORIEL_CHECK(cuda_status("asking for the current context", cuda().ctx_get_current(&context)));
  if (context == nullptr) return 0;  // like the CUDA runtime before the first cudaSetDevice
  CUdevice device = 0;
  ORIEL_CHECK(cuda_status("asking for the current device", cuda().ctx_get_device(&device)));
  return device;  // device handles of the driver are ordinals
}

int cuda_ordinal_of(const void* pointer) {
  int ordinal = -1;
  const CUresult status = cuda().pointer_get_attribute(
      &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, reinterpret_cast<CUdeviceptr>(pointer));
  return status == CUDA_SUCCESS ? ordinal : -1;
}

Result<Device*> cuda_device(int ordinal) {
  static std::mutex mutex;
  // Never destroyed: communicators may outlive static objects.
  static auto* const devices = new std::map<int, std::unique_ptr<CudaDevice>>;
  const std::lock_guard lock(mutex);
  auto& place = (*devices)[ordinal];
  if (place == nullptr) {
    auto device = CudaDevice::make(ordinal);
    if (!device.ok()) return std::move(device).error();
    place = std::move(device).value();
  }
  return place.get();
}

}  // namespace oriel::comm
