// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "oriel/device/window.hpp"

#include "base/cuda_scope.hpp"
#include "base/process_number.hpp"
#include "base/try.hpp"
#include "comm/device.hpp"
#include "comm/executor_cuda.hpp"
#include "comm/window_sink.hpp"
#include "kernels/launch_cuda.hpp"
#include "shadow/shadow_pool_cuda.hpp"
#include "topo/device_reach.hpp"
#include "window/memory_cuda.hpp"

namespace oriel::comm {
namespace {

/// A stream of the library's own; it never waits for the null stream.
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

class CudaNoticeBoard final : public NoticeBoard {
 public:
  static Result<std::unique_ptr<NoticeBoard>> make(CUcontext context) {
    void* host = nullptr;
    CUdeviceptr device = 0;
    ORIEL_CHECK(
        cuda_status("allocating pinned memory",
                    cuda().mem_host_alloc(&host, sizeof(Notices),
                                          CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)));
    std::unique_ptr<CudaNoticeBoard> board(new CudaNoticeBoard(context, new (host) Notices));
    ORIEL_CHECK(
        cuda_status("mapping pinned memory", cuda().mem_host_get_device_pointer(&device, host, 0)));
    board->device_ = reinterpret_cast<Notices*>(device);
    return std::unique_ptr<NoticeBoard>(std::move(board));
  }
  ~CudaNoticeBoard() override {
    // Tried even if the context cannot be entered: any other context of the thread will do.
    const auto scope = CudaScope::enter(context_);
    static_cast<void>(cuda().mem_free_host(host_));
  }
  Notices& host() override { return *host_; }
  Notices* on_device() override { return device_; }

 private:
  CudaNoticeBoard(CUcontext context, Notices* host) : context_(context), host_(host) {}
  CUcontext context_;
  Notices* host_;
  Notices* device_ = nullptr;
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
    ORIEL_CHECK(
        cuda_status("asking for the multiprocessors of a device",
                    cuda().device_get_attribute(&device->multiprocessors_,
                                                CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle)));
    return device;
  }

  kernels::Backend backend() const override { return kernels::Backend::cuda; }
  int ordinal() const override { return ordinal_; }
  window::Memory& memory() override { return memory_; }
  int max_ctas(int ranks_here) const override {
    return std::max(1, std::min(144, multiprocessors_ / std::max(1, ranks_here)));
  }

  Result<topo::RankInfo> rank_info(const topo::NodeIdentity& node) override;
  Status prepare_scratch(std::byte* scratch, const kernels::ScratchLayout& layout) override;
  Status prepare_control(std::byte* memory, std::size_t bytes, std::size_t offset,
                         std::span<const std::byte> part) override;
  Result<std::unique_ptr<NoticeBoard>> make_notice_board() override {
    ORIEL_TRY(const auto scope, CudaScope::enter(context_.get()));
    return CudaNoticeBoard::make(context_.get());
  }
  Result<std::unique_ptr<Executor>> make_executor() override {
    return CudaExecutor::make(context_.get());
  }
  Result<std::unique_ptr<PooledWindowSink>> make_window_sink(const TeamFacts& facts) override;

 private:
  CudaDevice(int ordinal, PrimaryContext context, window::Memory& memory)
      : ordinal_(ordinal), context_(std::move(context)), memory_(memory) {}

  const int ordinal_;
  PrimaryContext context_;
  window::Memory& memory_;
  std::size_t memory_bytes_ = 0;
  int multiprocessors_ = 1;
};

Result<topo::RankInfo> CudaDevice::rank_info(const topo::NodeIdentity& node) {
  ORIEL_TRY(topo::RankInfo info, topo::cuda_rank_info(node, ordinal_));
  info.memory_bytes = memory_bytes_;
  return info;
}

Status CudaDevice::prepare_scratch(std::byte* scratch, const kernels::ScratchLayout& layout) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_.get()));
  ORIEL_TRY(const auto stream, OwnedStream::create());
  const auto fill = [&](std::uint64_t begin, std::uint64_t end, unsigned value) {
    return cuda_status("clearing scratch memory",
                       cuda().memset_d32_async(reinterpret_cast<CUdeviceptr>(scratch) + begin,
                                               value, (end - begin) / 4, stream.get()));
  };
  // Counters and flags begin with zero, slots of sentinel lines empty, that is all ones. Rings may
  // hold anything.
  Status filled = fill(0, layout.lines, 0);
  if (filled.ok()) filled = fill(layout.lines, layout.rings, ~0u);
  // Also after a failure: what was enqueued before it writes to memory that is about to go.
  const CUresult done = cuda().stream_synchronize(stream.get());
  return filled.ok() ? cuda_status("clearing scratch memory", done) : filled;
}

Status CudaDevice::prepare_control(std::byte* memory, std::size_t bytes, std::size_t offset,
                                   std::span<const std::byte> part) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_.get()));
  ORIEL_TRY(const auto stream, OwnedStream::create());
  const auto base = reinterpret_cast<CUdeviceptr>(memory);
  CUresult status = cuda().memset_d32_async(base, 0, bytes / 4, stream.get());
  if (status == CUDA_SUCCESS) {
    status = cuda().memcpy_h_to_d_async(base + offset, part.data(), part.size(), stream.get());
  }
  const CUresult done = cuda().stream_synchronize(stream.get());  // it reads `part`
  return cuda_status("preparing control memory", status != CUDA_SUCCESS ? status : done);
}

Result<std::unique_ptr<PooledWindowSink>> CudaDevice::make_window_sink(const TeamFacts& facts) {
  ORIEL_TRY(auto windows, shadow::cuda_pool(ordinal_, sizeof(device::WindowObject),
                                            alignof(device::WindowObject)));
  ORIEL_TRY(auto tables,
            shadow::cuda_pool(ordinal_, PooledWindowSink::table_bytes(facts.world_size), 64));
  return PooledWindowSink::make(std::move(windows), std::move(tables), facts);
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
  if (context == nullptr) return 0;  // as the CUDA runtime has it before the first cudaSetDevice
  CUdevice device = 0;
  ORIEL_CHECK(cuda_status("asking for the current device", cuda().ctx_get_device(&device)));
  return device;  // the driver's device handles are ordinals
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
