// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "shadow/shadow_pool_cuda.hpp"

#include <cstdlib>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/alignment.hpp"
#include "base/cuda_scope.hpp"
#include "base/cuda_table.hpp"
#include "base/log.hpp"
#include "base/try.hpp"

namespace oriel::shadow {
namespace {

void warn_unless_done(CUresult status, const char* what) {
  if (status == CUDA_SUCCESS || status == CUDA_ERROR_DEINITIALIZED) return;
  Log().warn("{}", cuda_error(what, status).message());
}

/// Device memory from cuMemCreate, which is released without waiting, and pageable host memory for
/// the copies. Pinning would wait for the device, and the driver stages small copies anyway.
class CudaChunk final : public Chunk {
 public:
  explicit CudaChunk(std::size_t bytes)
      : bytes_(bytes), host_(static_cast<std::byte*>(std::calloc(bytes, 1))) {}
  ~CudaChunk() override {
    const Result<RelaxedCapture> relaxed = RelaxedCapture::enter();
    if (mapped_) warn_unless_done(cuda().mem_unmap(base_, bytes_), "unmapping device objects");
    if (base_ != 0) {
      warn_unless_done(cuda().mem_address_free(base_, bytes_), "releasing reserved addresses");
    }
    if (created_) warn_unless_done(cuda().mem_release(handle_), "releasing device objects");
  }
  CudaChunk(const CudaChunk&) = delete;
  CudaChunk& operator=(const CudaChunk&) = delete;

  /// Creates and maps the memory. After a failure, the destructor undoes the completed steps.
  Status make(const CUmemAllocationProp& wanted) {
    if (host_ == nullptr) {
      return Error(ErrorCode::system, fmt::format("no memory for {} bytes of copies", bytes_));
    }
    CUmemAccessDesc access{};
    access.location = wanted.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    CUresult status = cuda().mem_create(&handle_, bytes_, &wanted, 0);
    created_ = status == CUDA_SUCCESS;
    if (status == CUDA_SUCCESS) status = cuda().mem_address_reserve(&base_, bytes_, 0, 0, 0);
    if (status == CUDA_SUCCESS) {
      status = cuda().mem_map(base_, bytes_, 0, handle_, 0);
      mapped_ = status == CUDA_SUCCESS;
    }
    if (status == CUDA_SUCCESS) status = cuda().mem_set_access(base_, bytes_, &access, 1);
    return cuda_status(fmt::format("making {} bytes of device objects", bytes_), status);
  }

  std::byte* device() const override { return reinterpret_cast<std::byte*>(base_); }
  std::byte* host() const override { return host_.get(); }
  std::size_t bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  // From calloc: the kernel zeroes the pages at their first use.
  std::unique_ptr<std::byte, Free> host_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr base_ = 0;
  bool created_ = false;
  bool mapped_ = false;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device, PrimaryContext context, std::size_t granularity)
      : context_(std::move(context)), granularity_(granularity) {
    wanted_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted_.location = device_location(device);
  }
  ~CudaBackend() override {
    if (stream_ == nullptr) return;
    const Result<CudaScope> scope = CudaScope::enter(context_.get());
    warn_unless_done(cuda().stream_destroy(stream_), "destroying the stream of device objects");
  }

  Status open_stream() {
    ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
    return cuda_status("creating a stream", cuda().stream_create(&stream_, CU_STREAM_NON_BLOCKING));
  }

  Result<std::unique_ptr<Chunk>> make_chunk(std::size_t bytes) override {
    ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
    auto chunk = std::make_unique<CudaChunk>(round_up(bytes, granularity_));
    ORIEL_CHECK(chunk->make(wanted_));
    return std::unique_ptr<Chunk>(std::move(chunk));
  }

  /// Uses only copies, which need no SM, so a kernel that fills the GPU does not delay them.
  Status upload(std::span<const Upload> uploads) override {
    ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
    CUresult status = CUDA_SUCCESS;
    for (const Upload& next : uploads) {
      if (status != CUDA_SUCCESS) break;
      status = cuda().memcpy_h_to_d_async(reinterpret_cast<CUdeviceptr>(next.device), next.host,
                                          next.bytes, stream_);
    }
    // Also after a failure: started copies still read the host copies.
    const CUresult done = cuda().stream_synchronize(stream_);
    return cuda_status("uploading device objects", status != CUDA_SUCCESS ? status : done);
  }

 private:
  PrimaryContext context_;  // outlives the stream
  CUmemAllocationProp wanted_{};
  std::size_t granularity_;
  CUstream stream_ = nullptr;
};

Result<std::unique_ptr<Backend>> make_cuda_backend(int device) {
  ORIEL_CHECK(cuda_ready());
  CUdevice opened = 0;
  ORIEL_CHECK(
      cuda_status(fmt::format("opening GPU {}", device), cuda().device_get(&opened, device)));
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = device_location(device);
  std::size_t granularity = 0;
  ORIEL_CHECK(cuda_status("reading the allocation granularity",
                          cuda().mem_get_allocation_granularity(&granularity, &wanted,
                                                                CU_MEM_ALLOC_GRANULARITY_MINIMUM)));
  ORIEL_TRY(PrimaryContext context, PrimaryContext::retain(opened));
  auto backend = std::make_unique<CudaBackend>(device, std::move(context), granularity);
  ORIEL_CHECK(backend->open_stream());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace

Result<std::shared_ptr<ShadowPool>> cuda_pool(int device, std::size_t object_bytes,
                                              std::size_t alignment) {
  return shared_pool(device, object_bytes, alignment, [&] { return make_cuda_backend(device); });
}

}  // namespace oriel::shadow
