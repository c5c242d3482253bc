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
#include "kernels/launch_cuda.hpp"
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
    auto scope = CudaScope::enter(context_);
    if (scope.ok()) static_cast<void>(cuda().mem_free_host(host_));
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
    std::unique_ptr<CudaDevice> device(
        new CudaDevice(ordinal, handle, std::move(context), *memory));
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
  std::size_t memory_bytes() const override { return memory_bytes_; }
  int max_ctas(int ranks_here) const override {
    return std::max(1, std::min(144, multiprocessors_ / std::max(1, ranks_here)));
  }

  Result<topo::RankInfo> rank_info(const topo::NodeIdentity& node) override;
  Status prepare_scratch(std::byte* scratch, const kernels::ScratchLayout& layout) override;
  Result<std::unique_ptr<NoticeBoard>> make_notice_board() override {
    ORIEL_TRY(const auto scope, CudaScope::enter(context_.get()));
    return CudaNoticeBoard::make(context_.get());
  }
  Result<std::unique_ptr<Executor>> make_executor() override {
    return CudaExecutor::make(context_.get());
  }
  Result<std::unique_ptr<window::WindowSink>> make_window_sink(const TeamFacts& facts) override;

 private:
  CudaDevice(int ordinal, CUdevice handle, PrimaryContext context, window::Memory& memory)
      : ordinal_(ordinal), handle_(handle), context_(std::move(context)), memory_(memory) {}

  const int ordinal_;
  const CUdevice handle_;
  PrimaryContext context_;
  window::Memory& memory_;
  std::size_t memory_bytes_ = 0;
  int multiprocessors_ = 1;
};

Result<topo::RankInfo> CudaDevice::rank_info(const topo::NodeIdentity& node) {
  return topo::cuda_rank_info(node, ordinal_);
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
  ORIEL_CHECK(fill(0, layout.lines, 0));
  ORIEL_CHECK(fill(layout.lines, layout.rings, ~0u));
  return cuda_status("clearing scratch memory", cuda().stream_synchronize(stream.get()));
}

/// Window objects in device memory, one allocation for each.
class CudaWindowSink final : public window::WindowSink {
 public:
  CudaWindowSink(CUcontext context, OwnedStream stream, const TeamFacts& facts)
      : context_(context), stream_(std::move(stream)), facts_(facts) {}
  ~CudaWindowSink() override {
    auto scope = CudaScope::enter(context_);
    if (scope.ok() && indices_ != 0) static_cast<void>(cuda().mem_free(indices_));
  }

  Status upload_indices() {
    std::vector<std::int32_t> indices(static_cast<std::size_t>(facts_.world_size), -1);
    for (std::size_t i = 0; i < facts_.members.size(); ++i) {
      indices[static_cast<std::size_t>(facts_.members[i])] = static_cast<std::int32_t>(i);
    }
    ORIEL_TRY(const auto scope, CudaScope::enter(context_));
    const std::size_t bytes = indices.size() * sizeof(std::int32_t);
    ORIEL_CHECK(cuda_status("allocating a table of ranks", cuda().mem_alloc(&indices_, bytes)));
    return upload(indices_, indices.data(), bytes);
  }

  Result<void*> create(const window::WindowFacts& facts) override {
    device::WindowObject object{};
    object.flat_base = reinterpret_cast<char*>(facts.window.flat_base) + facts.window.slot_offset;
    object.lsa_rank = facts_.index;
    object.world_rank = facts_.world_rank;
    object.stride_4g = static_cast<std::uint32_t>(facts.slot_bytes >> 32);
    object.magic = device::kWindowMagic;
    object.version = device::kWindowVersion;
    object.size_bytes = facts.window.bytes;
    object.world_size = facts_.world_size;
    object.lsa_size = static_cast<std::int32_t>(facts_.members.size());
    object.lsa_index_of = reinterpret_cast<const std::int32_t*>(indices_);
    ORIEL_TRY(const auto scope, CudaScope::enter(context_));
    CUdeviceptr place = 0;
    ORIEL_CHECK(cuda_status("allocating a window object", cuda().mem_alloc(&place, sizeof object)));
    if (auto status = upload(place, &object, sizeof object); !status.ok()) {
      static_cast<void>(cuda().mem_free(place));
      return std::move(status).error();
    }
    return reinterpret_cast<void*>(place);
  }
  void destroy(void* handle) noexcept override {
    auto scope = CudaScope::enter(context_);
    if (scope.ok()) static_cast<void>(cuda().mem_free(reinterpret_cast<CUdeviceptr>(handle)));
  }

 private:
  Status upload(CUdeviceptr target, const void* source, std::size_t bytes) {
    ORIEL_CHECK(cuda_status("uploading a window object",
                            cuda().memcpy_h_to_d_async(target, source, bytes, stream_.get())));
    return cuda_status("uploading a window object", cuda().stream_synchronize(stream_.get()));
  }

  CUcontext context_;
  OwnedStream stream_;
  TeamFacts facts_;
  CUdeviceptr indices_ = 0;
};

Result<std::unique_ptr<window::WindowSink>> CudaDevice::make_window_sink(const TeamFacts& facts) {
  ORIEL_TRY(const auto scope, CudaScope::enter(context_.get()));
  ORIEL_TRY(auto stream, OwnedStream::create());
  auto sink = std::make_unique<CudaWindowSink>(context_.get(), std::move(stream), facts);
  ORIEL_CHECK(sink->upload_indices());
  return std::unique_ptr<window::WindowSink>(std::move(sink));
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
