// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/copy_stream_cuda.hpp"

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/cuda_table.hpp"
#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/try.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kCountBytes = 4096;  // a page, which aligns the slots
constexpr std::chrono::seconds kCopiesEndMost{30};
constexpr std::chrono::microseconds kBetweenPolls{20};

CUdeviceptr gpu_address(const std::byte* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace

Status check_copy_streams(CUdevice device) {
  int writes = 0;
  ORIEL_CHECK(cuda_status(fmt::format("asking GPU {} for stream memory operations", device),
                          cuda().device_get_attribute(
                              &writes, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device)));
  if (writes != 0) return {};
  return Error(ErrorCode::cuda,
               fmt::format("GPU {} has no stream memory operations of 64 bits", device));
}

Result<std::unique_ptr<CudaCopyStream>> CudaCopyStream::create(CUdevice device,
                                                               std::size_t slot_bytes,
                                                               std::uint32_t slots) {
  ORIEL_TRY(PrimaryContext context, PrimaryContext::retain(device));
  ORIEL_CHECK(check_copy_streams(device));
  std::unique_ptr<CudaCopyStream> made(new CudaCopyStream(std::move(context)));
  ORIEL_CHECK(made->prepare(slot_bytes, slots));
  return made;
}

Status CudaCopyStream::prepare(std::size_t slot_bytes, std::uint32_t slots) {
  ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
  const std::size_t bytes = kCountBytes + slots * slot_bytes;
  void* pinned = nullptr;
  ORIEL_CHECK(cuda_status(
      fmt::format("pinning {} bytes for a software NIC", bytes),
      cuda().mem_host_alloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)));
  pinned_ = static_cast<std::byte*>(pinned);
  slots_ = pinned_ + kCountBytes;
  slot_bytes_ = slot_bytes;
  std::memset(pinned_, 0, kCountBytes);
  ORIEL_CHECK(cuda_status("finding pinned memory in a GPU's addresses",
                          cuda().mem_host_get_device_pointer(&count_address_, pinned_, 0)));
  return cuda_status("making a stream for a software NIC",
                     cuda().stream_create(&stream_, CU_STREAM_NON_BLOCKING));
}

CudaCopyStream::~CudaCopyStream() {
  if (pinned_ == nullptr) return;
  const auto scope = CudaScope::enter(context_.get());
  if (stream_ != nullptr) {
    static_cast<void>(words_.submit(stream_));
    // Waits only for the stream's own work, which depends on nobody.
    if (!ends()) {
      Log().warn(
          "a GPU has not ended a software NIC's copies, so their pinned memory is not freed; hint: "
          "let kernels end before the last communicator is destroyed");
      return;
    }
    static_cast<void>(cuda().stream_destroy(stream_));
  }
  static_cast<void>(cuda().mem_free_host(pinned_));
}

bool CudaCopyStream::ends() noexcept {
  const Clock& clock = SteadyClock::instance();
  const Deadline deadline = Deadline::after(kCopiesEndMost, clock);
  for (; !settle(); std::this_thread::sleep_for(kBetweenPolls)) {
    if (deadline.expired(clock.now())) return false;
  }
  return true;
}

template <class Calls>
Status CudaCopyStream::enqueue(const char* what, const Calls& calls) {
  ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
  ORIEL_CHECK(words_.submit(stream_));
  return cuda_status(what, calls());
}

Status CudaCopyStream::load(std::uint32_t number, const std::byte* from, std::size_t count) {
  return enqueue("copying from a GPU for a software NIC", [&] {
    return cuda().memcpy_d_to_h_async(slot(number), gpu_address(from), count, stream_);
  });
}

Status CudaCopyStream::store(std::byte* to, std::uint32_t number, ByteView from) {
  std::memcpy(slot(number), from.data(), from.size());
  return enqueue("copying to a GPU for a software NIC", [&] {
    return cuda().memcpy_h_to_d_async(gpu_address(to), slot(number), from.size(), stream_);
  });
}

Status CudaCopyStream::copy(std::byte* to, const std::byte* from, std::size_t count) {
  return enqueue("copying within a GPU, or from another, for a software NIC", [&] {
    return cuda().memcpy_d_to_d_async(gpu_address(to), gpu_address(from), count, stream_);
  });
}

Status CudaCopyStream::submit_words() {
  ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
  return words_.submit(stream_);
}

Status CudaCopyStream::write(std::byte* to, std::uint64_t value, std::size_t bytes) {
  if (words_.is_full()) ORIEL_CHECK(submit_words());
  words_.add(gpu_address(to), value, bytes);
  return {};
}

Status CudaCopyStream::signal(std::uint64_t count) {
  if (words_.is_full()) ORIEL_CHECK(submit_words());
  words_.add(count_address_, count, sizeof count);
  return submit_words();
}

std::uint64_t CudaCopyStream::signalled() const {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(pinned_))
      .load(std::memory_order_acquire);
}

Status CudaCopyStream::poll() {
  return enqueue("moving bytes of a GPU for a software NIC", [&] {
    const CUresult status = cuda().stream_query(stream_);
    return status == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : status;
  });
}

/// Polls, since a wait inside the driver has no deadline. A stream that has failed does nothing
/// more.
bool CudaCopyStream::settle() noexcept {
  words_.drop();
  if (is_settled_) return true;
  const auto scope = CudaScope::enter(context_.get());
  is_settled_ = cuda().stream_query(stream_) != CUDA_ERROR_NOT_READY;
  return is_settled_;
}

}  // namespace oriel::net
