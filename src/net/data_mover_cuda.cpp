// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/data_mover_cuda.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/cuda_table.hpp"
#include "base/try.hpp"
#include "net/host_memory.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kCountBytes = 4096;  // a page, so that slots are aligned
/// How long the count may stand still before the driver is asked whether the stream is alive.
constexpr std::chrono::milliseconds kSilence{20};
constexpr std::chrono::seconds kDrainMost{30};

CUdeviceptr address(const std::byte* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

bool is_word(const std::byte* at, std::size_t count) {
  return (count == 4 || count == 8) && address(at) % count == 0;
}

}  // namespace

Result<std::unique_ptr<CudaMover>> CudaMover::create(const Options& options) {
  ORIEL_TRY(PrimaryContext context, PrimaryContext::retain(options.device));
  std::unique_ptr<CudaMover> made(new CudaMover(options, std::move(context)));
  ORIEL_CHECK(made->prepare());
  return made;
}

Status CudaMover::prepare() {
  int writes = 0;
  ORIEL_CHECK(cuda_status(
      fmt::format("asking GPU {} for stream memory operations", options_.device),
      cuda().device_get_attribute(&writes, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                                  options_.device)));
  if (writes == 0) {
    return Error(ErrorCode::cuda,
                 fmt::format("GPU {} has no stream memory operations of 64 bits", options_.device));
  }
  ORIEL_TRY(const CudaScope scope, CudaScope::enter(context_.get()));
  const std::size_t bytes = kCountBytes + options_.slots * options_.slot_bytes;
  void* pinned = nullptr;
  ORIEL_CHECK(cuda_status(
      fmt::format("pinning {} bytes for a software NIC", bytes),
      cuda().mem_host_alloc(&pinned, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP)));
  pinned_ = static_cast<std::byte*>(pinned);
  slots_ = pinned_ + kCountBytes;
  std::memset(pinned_, 0, kCountBytes);
  ORIEL_CHECK(cuda_status("finding pinned memory in a GPU's addresses",
                          cuda().mem_host_get_device_pointer(&count_address_, pinned_, 0)));
  ORIEL_CHECK(cuda_status("making a stream for a software NIC",
                          cuda().stream_create(&stream_, CU_STREAM_NON_BLOCKING)));
  for (std::uint32_t slot = options_.slots; slot > 0; --slot) free_.push_back(slot - 1);
  return {};
}

CudaMover::~CudaMover() {
  if (pinned_ == nullptr) return;
  const auto scope = CudaScope::enter(context_.get());
  if (stream_ != nullptr) {
    // Its own work only, which waits for nobody.
    static_cast<void>(cuda().stream_synchronize(stream_));
    static_cast<void>(cuda().stream_destroy(stream_));
  }
  static_cast<void>(cuda().mem_free_host(pinned_));
}

template <class Calls>
bool CudaMover::enqueue(const char* what, const Calls& calls) {
  if (!failure_.ok()) return false;
  const auto scope = CudaScope::enter(context_.get());
  if (!scope.ok()) {
    failure_ = scope.error();
  } else {
    failure_ = cuda_status(what, calls());
  }
  return failure_.ok();
}

bool CudaMover::take_slot(std::uint32_t& slot) {
  while (!busy_.empty() && is_done(busy_.front().until)) {
    free_.push_back(busy_.front().slot);
    busy_.pop_front();
  }
  if (free_.empty()) return false;
  slot = free_.back();
  free_.pop_back();
  return true;
}

void CudaMover::give_back(StagedPart& part) noexcept {
  if (is_done(part.ticket)) {
    free_.push_back(part.slot());
    return;
  }
  // Among those of later tickets: the first that ends is to be found at the front.
  const auto later = std::find_if(busy_.begin(), busy_.end(),
                                  [&](const Busy& busy) { return busy.until > part.ticket; });
  busy_.insert(later, {part.ticket, part.slot()});
}

StagedPart CudaMover::load(const std::byte* from, std::size_t count) {
  std::uint32_t slot = 0;
  if (!failure_.ok() || !take_slot(slot)) return {};
  const std::size_t taken = std::min(count, options_.slot_bytes);
  StagedPart part(*this, slot_bytes(slot), taken, slot);
  part.ticket = begun();
  if (!enqueue("copying from a GPU for a software NIC", [&] {
        return cuda().memcpy_d_to_h_async(slot_bytes(slot), address(from), taken, stream_);
      })) {
    return {};
  }
  return part;
}

bool CudaMover::write_word(std::byte* to, std::uint64_t value, std::size_t bytes) {
  const bool done = enqueue("writing a word of a GPU for a software NIC", [&] {
    if (bytes == 8) return cuda().stream_write_value_64(stream_, address(to), value, 0);
    return cuda().stream_write_value_32(stream_, address(to), static_cast<std::uint32_t>(value), 0);
  });
  if (done) begun();
  return done;
}

std::size_t CudaMover::store(std::byte* to, ByteView from, MoveTicket& ticket) {
  if (is_word(to, from.size())) {
    std::uint64_t value = 0;
    std::memcpy(&value, from.data(), from.size());
    if (!write_word(to, value, from.size())) return 0;
    forget(to, from.size());
    ticket = told_ + 1;
    return from.size();
  }
  std::uint32_t slot = 0;
  if (!failure_.ok() || !take_slot(slot)) return 0;
  const std::size_t taken = std::min(from.size(), options_.slot_bytes);
  std::memcpy(slot_bytes(slot), from.data(), taken);
  ticket = begun();
  busy_.push_back({ticket, slot});
  forget(to, taken);
  const bool done = enqueue("copying to a GPU for a software NIC", [&] {
    return cuda().memcpy_h_to_d_async(address(to), slot_bytes(slot), taken, stream_);
  });
  return done ? taken : 0;
}

bool CudaMover::copy(std::byte* to, const std::byte* from, std::size_t count, MoveTicket& ticket) {
  if (count == 0) return true;
  forget(to, count);
  if (!enqueue("copying within a GPU, or from another, for a software NIC", [&] {
        return cuda().memcpy_d_to_d_async(address(to), address(from), count, stream_);
      })) {
    return false;
  }
  ticket = begun();
  return true;
}

bool CudaMover::take_reading(AtomicMove& move, std::uint64_t place, std::uint64_t& value) {
  if (!is_done(move.reading.ticket)) return false;
  std::memcpy(&value, move.reading.bytes(), sizeof value);
  return drop_reading(move, place);  // if it was changed, the move reads again
}

bool CudaMover::drop_reading(AtomicMove& move, std::uint64_t place) {
  move.reading = {};
  const auto reading = readings_.find(place);
  const bool is_fresh = reading->second.changed_at < move.read_at;
  if (--reading->second.readers == 0) readings_.erase(reading);
  return is_fresh;
}

bool CudaMover::step_atomic(AtomicMove& move, std::byte* at) {
  const std::uint64_t place = address(at) & ~std::uint64_t{7};
  const std::size_t offset = address(at) - place;
  auto known = words_.find(place);
  if (known == words_.end()) {
    if (move.reading.size() == 0) {
      move.reading = load(at - offset, 8);
      if (move.reading.size() == 0) return false;
      move.read_at = ++clock_;
      ++readings_[place].readers;
      return false;
    }
    std::uint64_t value = 0;
    if (!take_reading(move, place, value)) return false;
    known = words_.emplace(place, value).first;
  } else if (move.reading.size() != 0) {
    static_cast<void>(drop_reading(move, place));  // another move has read it meanwhile
  }
  std::array<std::byte, 8> word;
  std::memcpy(word.data(), &known->second, word.size());
  move.old_value = 0;
  std::memcpy(&move.old_value, word.data() + offset, move.work.bytes);
  const std::uint64_t value = apply_atomic(move.work, move.old_value);
  if (!write_word(at, value, move.work.bytes)) return false;
  std::memcpy(word.data() + offset, &value, move.work.bytes);
  std::memcpy(&known->second, word.data(), word.size());
  if (!move.own_word) words_.erase(known);
  if (const auto reading = readings_.find(place); reading != readings_.end()) {
    reading->second.changed_at = ++clock_;
  }
  move.ticket = told_ + 1;
  return true;
}

bool CudaMover::is_done(MoveTicket ticket) {
  const std::atomic_ref<std::uint64_t> count(*reinterpret_cast<std::uint64_t*>(pinned_));
  return ticket <= count.load(std::memory_order_acquire);
}

bool CudaMover::flush() {
  if (dirty_ && enqueue("counting what a software NIC has done", [&] {
        return cuda().stream_write_value_64(stream_, count_address_, told_ + 1, 0);
      })) {
    ++told_;
    dirty_ = false;
  }
  if (is_done(told_)) {
    last_seen_ = told_;
    return false;
  }
  look_after_stream();
  return failure_.ok();
}

void CudaMover::look_after_stream() {
  const MoveTicket seen = std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(pinned_))
                              .load(std::memory_order_acquire);
  const TimePoint now = SteadyClock::instance().now();
  if (seen != last_seen_ || looked_ == TimePoint{}) {
    last_seen_ = seen;
    looked_ = now;
    return;
  }
  if (now - looked_ < kSilence) return;
  looked_ = now;
  static_cast<void>(enqueue("moving bytes of a GPU for a software NIC", [&] {
    const CUresult status = cuda().stream_query(stream_);
    return status == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : status;
  }));
}

Status CudaMover::drain() {
  static_cast<void>(flush());
  const Deadline deadline = Deadline::after(kDrainMost, SteadyClock::instance());
  while (failure_.ok() && flush()) {
    if (deadline.expired(SteadyClock::instance().now())) {
      return Error(ErrorCode::timeout, "a GPU has not moved a software NIC's bytes in 30 seconds");
    }
    std::this_thread::yield();
  }
  if (!failure_.ok()) {
    // What was enqueued before the call that failed may still run, and it waits for nobody.
    const auto scope = CudaScope::enter(context_.get());
    static_cast<void>(cuda().stream_synchronize(stream_));
  }
  return failure_;
}

void CudaMover::forget(const std::byte* at, std::size_t count) {
  const std::uint64_t begin = address(at) & ~std::uint64_t{7};
  for (auto reading = readings_.lower_bound(begin);
       reading != readings_.end() && reading->first < address(at) + count; ++reading) {
    reading->second.changed_at = ++clock_;
  }
  if (words_.empty()) return;
  words_.erase(words_.lower_bound(begin), words_.lower_bound(address(at) + count));
}

}  // namespace oriel::net
