// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/process/nic_server_channel_cuda.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::net {
namespace {

constexpr std::chrono::milliseconds kStreamProgressTimeout{20};
constexpr std::size_t kBounceBytes = std::size_t{256} << 10;
constexpr std::size_t kLinearFrom = std::size_t{32} << 10;  // shorter copies go as two rows

Result<std::size_t> mapping_unit(CUdevice device) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = device_location(device);
  std::size_t unit = 0;
  ORIEL_CHECK(cuda_status(
      "reading the allocation granularity",
      cuda().mem_get_allocation_granularity(&unit, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM)));
  return std::max<std::size_t>(unit, 1);
}

}  // namespace

Result<std::unique_ptr<NicServerRegion>> NicServerRegion::make(CUdevice device,
                                                               const nic_request::Add& add,
                                                               const OwnedFd& descriptor) {
  std::unique_ptr<NicServerRegion> made(new NicServerRegion());
  ORIEL_CHECK(made->import(device, add, descriptor));
  return made;
}

Status NicServerRegion::import(CUdevice device, const nic_request::Add& add,
                               const OwnedFd& descriptor) {
  ORIEL_TRY(const std::size_t unit, mapping_unit(device));
  if (add.bytes % unit != 0) {
    return Error(
        ErrorCode::remote,
        fmt::format("an allocation of {} bytes, which are no multiple of {}", add.bytes, unit));
  }
  CUmemFabricHandle fabric{};
  static_assert(sizeof fabric.data == std::tuple_size_v<FabricBytes>);
  std::memcpy(fabric.data, add.fabric.data(), add.fabric.size());
  // The driver takes the number of a descriptor in place of a pointer.
  void* const number = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor.get()));
  const std::string what = fmt::format("importing {} bytes of a GPU", add.bytes);
  ORIEL_CHECK(cuda_status(
      what, add.by_fabric ? cuda().mem_import_from_shareable_handle(&handle_, &fabric,
                                                                    CU_MEM_HANDLE_TYPE_FABRIC)
                          : cuda().mem_import_from_shareable_handle(
                                &handle_, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
  has_handle_ = true;
  CUmemAllocationProp found{};
  ORIEL_CHECK(cuda_status("reading the properties of an allocation",
                          cuda().mem_get_allocation_properties_from_handle(&found, handle_)));
  region_.is_local =
      found.location.type == CU_MEM_LOCATION_TYPE_DEVICE && found.location.id == device;
  CUdeviceptr at = 0;
  ORIEL_CHECK(cuda_status(fmt::format("reserving {} bytes of addresses", add.bytes),
                          cuda().mem_address_reserve(&at, add.bytes, unit, 0, 0)));
  region_.address = at;
  region_.bytes = add.bytes;
  ORIEL_CHECK(cuda_status(fmt::format("mapping {} bytes of a GPU", add.bytes),
                          cuda().mem_map(at, add.bytes, 0, handle_, 0)));
  mapped_ = true;
  CUmemAccessDesc access{};
  access.location = device_location(device);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return cuda_status(fmt::format("giving GPU {} access to {} bytes", device, add.bytes),
                     cuda().mem_set_access(at, add.bytes, &access, 1));
}

NicServerRegion::~NicServerRegion() {
  if (mapped_) static_cast<void>(cuda().mem_unmap(region_.address, region_.bytes));
  if (region_.address != 0) {
    static_cast<void>(cuda().mem_address_free(region_.address, region_.bytes));
  }
  if (has_handle_) static_cast<void>(cuda().mem_release(handle_));
}

Result<std::unique_ptr<NicServerChannel>> NicServerChannel::make(const nic_request::Open& open,
                                                                 const OwnedFd& descriptor) {
  std::unique_ptr<NicServerChannel> made(new NicServerChannel());
  ORIEL_CHECK(made->prepare(open, descriptor));
  return made;
}

Status NicServerChannel::prepare(const nic_request::Open& open, const OwnedFd& descriptor) {
  const std::size_t bytes = channel_bytes(open.slots, open.slot_bytes);
  ORIEL_CHECK(check_sealed_memfd(descriptor, bytes));
  ORIEL_TRY(mapping_, SharedMapping::map(descriptor, bytes));
  memory_ = NicChannelMemory(mapping_.data());
  staging_bytes_ = std::uint64_t{open.slots} * open.slot_bytes;
  ORIEL_CHECK(cuda_status(
      fmt::format("pinning {} bytes for a software NIC", bytes),
      cuda().mem_host_register(mapping_.data(), bytes,
                               CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)));
  registered_ = true;
  CUdeviceptr base = 0;
  ORIEL_CHECK(cuda_status("finding pinned memory in a GPU's addresses",
                          cuda().mem_host_get_device_pointer(&base, mapping_.data(), 0)));
  count_address_ = base + offsetof(NicChannelHeader, count);
  return cuda_status("making a stream for a software NIC",
                     cuda().stream_create(&stream_, CU_STREAM_NON_BLOCKING));
}

NicServerChannel::~NicServerChannel() {
  if (stream_ != nullptr) {
    static_cast<void>(cuda().stream_synchronize(stream_));
    static_cast<void>(cuda().stream_destroy(stream_));
  }
  if (bounce_ != nullptr) static_cast<void>(cuda().mem_free_host(bounce_));
  if (registered_) static_cast<void>(cuda().mem_host_unregister(mapping_.data()));
}

/// Publishes the error to the rank: first its text and native code, then `failed` with a release
/// store.
void NicServerChannel::fail(const Error& error) {
  failed_ = true;
  NicChannelHeader& header = memory_.header();
  const std::string& text = error.message();
  const std::size_t count = std::min(text.size(), header.text.size() - 1);
  std::memcpy(header.text.data(), text.data(), count);
  header.text[count] = '\0';
  header.native = error.native().value;
  memory_.failed().store(1, std::memory_order_release);
}

Status NicServerChannel::begin(const NicStep& step) {
  const bool is_write = step.kind == NicCommand::write;
  const bool is_signal = step.kind == NicCommand::signal;
  if (!(is_write || is_signal) || words_.is_full()) ORIEL_CHECK(words_.submit(stream_));
  if (is_write) ORIEL_CHECK(begin_with_copy(step.at));
  started_ = started_ || !is_signal;
  if (is_signal) signalled_ = step.value;
  if (is_write) words_.add(step.at, step.value, step.bytes);
  if (is_signal) words_.add(count_address_, step.value, sizeof step.value);
  return is_write || is_signal ? Status() : begin_copy(step);
}

/// Starts a stream with a copy. If the first step is a word, the stream executes its words where
/// kernels run. Each word may then wait for a time slice while the rank's kernels come and go. An
/// all-reduce of 8 bytes takes 2.1 ms in that case instead of 27 us (driver 580.159, H200). After
/// one copy ahead of all words, they go by the copy engine.
Status NicServerChannel::begin_with_copy(std::uint64_t at) {
  if (started_) return {};
  return cuda_status(
      "copying a first word from a GPU for a software NIC",
      cuda().memcpy_d_to_h_async(&memory_.header().first_word, at & ~std::uint64_t{7},
                                 sizeof(std::uint64_t), stream_));
}

Status NicServerChannel::begin_copy(const NicStep& step) {
  std::byte* const slots = memory_.slots() + step.staging;
  switch (step.kind) {
    case NicCommand::load:
      return cuda_status("copying from a GPU for a software NIC",
                         cuda().memcpy_d_to_h_async(slots, step.at, step.bytes, stream_));
    case NicCommand::store:
      return cuda_status("copying to a GPU for a software NIC",
                         cuda().memcpy_h_to_d_async(step.at, slots, step.bytes, stream_));
    case NicCommand::rows:
      return store_rows(step.at, slots, step.bytes, step.stride);
    case NicCommand::copy:
      if (step.within_gpu) return copy_within(step);
      return cuda_status("copying between GPUs for a software NIC",
                         cuda().memcpy_d_to_d_async(step.at, step.from, step.bytes, stream_));
    default:
      return Error(ErrorCode::internal, "a step of no kind");
  }
}

Status NicServerChannel::store_rows(std::uint64_t to, const std::byte* from, std::size_t width,
                                    std::size_t stride) {
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_HOST;
  rows.srcHost = from;
  rows.srcPitch = stride;
  rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.dstDevice = to;
  rows.dstPitch = width;
  rows.WidthInBytes = width;
  rows.Height = 2;
  return cuda_status("copying rows to a GPU for a software NIC",
                     cuda().memcpy_2d_async(&rows, stream_));
}

/// Copies piece by piece. Stream order ensures that a piece has left the pinned memory before the
/// next one arrives.
Status NicServerChannel::copy_within(const NicStep& step) {
  if (bounce_ == nullptr) {
    void* made = nullptr;
    ORIEL_CHECK(cuda_status("pinning memory for copies within a GPU",
                            cuda().mem_host_alloc(&made, kBounceBytes, CU_MEMHOSTALLOC_PORTABLE)));
    bounce_ = static_cast<std::byte*>(made);
  }
  const auto load = [&](std::size_t to, std::uint64_t from, std::size_t count) {
    return cuda_status("copying within a GPU for a software NIC",
                       cuda().memcpy_d_to_h_async(bounce_ + to, from, count, stream_));
  };
  for (std::uint64_t done = 0; done < step.bytes;) {
    const std::uint64_t from = step.from + done;
    const std::uint64_t to = step.at + done;
    const auto count =
        static_cast<std::size_t>(std::min<std::uint64_t>(kBounceBytes, step.bytes - done));
    const std::size_t half = count / 2;
    constexpr std::size_t kStride = kBounceBytes / 2;
    done += count;
    if (count >= kLinearFrom || half == 0) {
      ORIEL_CHECK(load(0, from, count));
      ORIEL_CHECK(cuda_status("copying within a GPU for a software NIC",
                              cuda().memcpy_h_to_d_async(to, bounce_, count, stream_)));
      continue;
    }
    ORIEL_CHECK(load(0, from, half));
    ORIEL_CHECK(load(kStride, from + half, half));
    ORIEL_CHECK(store_rows(to, bounce_, half, kStride));
    if (count % 2 == 0) continue;
    // The last byte goes with its neighbour, which is copied twice.
    ORIEL_CHECK(load(half, from + count - 2, 1));
    ORIEL_CHECK(load(kStride + half, from + count - 1, 1));
    ORIEL_CHECK(store_rows(to + count - 2, bounce_ + half, 1, kStride));
  }
  return {};
}

bool NicServerChannel::watch(TimePoint now) {
  const std::uint64_t seen = memory_.count().load(std::memory_order_relaxed);
  if (failed_ || seen >= signalled_) return false;
  if (seen != seen_ || polled_ == TimePoint{}) {
    seen_ = seen;
    polled_ = now;
  } else if (now - polled_ >= kStreamProgressTimeout) {
    polled_ = now;
    const CUresult status = cuda().stream_query(stream_);
    if (status != CUDA_SUCCESS && status != CUDA_ERROR_NOT_READY) {
      fail(cuda_error("moving bytes of a GPU for a software NIC", status));
    }
  }
  return true;
}

}  // namespace oriel::net
