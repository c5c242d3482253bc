// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/copy_engine_cuda.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/try.hpp"
#include "net/copy/copy_stream_cuda.hpp"
#include "net/copy/host_memory.hpp"

namespace oriel::net {
namespace {

std::uint64_t address(const std::byte* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

bool is_device_word(const std::byte* at, std::size_t count) {
  return (count == 4 || count == 8) && address(at) % count == 0;
}

}  // namespace

Result<std::unique_ptr<CudaCopyEngine>> CudaCopyEngine::create(const Options& options) {
  ORIEL_TRY(auto stream, CudaCopyStream::create(options.device, options.slot_bytes, options.slots));
  return std::make_unique<CudaCopyEngine>(std::move(stream), options.slots);
}

CudaCopyEngine::CudaCopyEngine(std::unique_ptr<CopyStream> stream, std::uint32_t slots)
    : stream_(std::move(stream)), progress_(*stream_), slots_(slots) {}

CudaCopyEngine::~CudaCopyEngine() = default;

void CudaCopyEngine::release(StagedPart& part) noexcept {
  slots_.release(part, progress_.done());
}

StagedPart CudaCopyEngine::load(const std::byte* from, std::size_t count) {
  return slots_.may_load() ? stage(from, count) : StagedPart();
}

bool CudaCopyEngine::keep(StagedPart& part) {
  return slots_.keep(part);
}

StagedPart CudaCopyEngine::stage(const std::byte* from, std::size_t count) {
  if (!progress_.may_begin()) return {};
  const std::size_t taken = progress_.reach(from, std::min(count, stream_->slot_bytes()));
  if (taken == 0) return {};
  const std::optional<std::uint32_t> slot = slots_.take(progress_.done());
  if (!slot) return {};
  StagedPart part(*this, stream_->slot(*slot), taken, *slot);
  slots_.note_loaded();
  part.ticket = progress_.begin();
  if (!progress_.check(stream_->load(*slot, from, taken))) return {};
  return part;
}

bool CudaCopyEngine::write_word(std::byte* to, std::uint64_t value, std::size_t bytes) {
  if (!progress_.may_begin() || progress_.reach(to, bytes) == 0) return false;
  const bool done = progress_.check(stream_->write(to, value, bytes));
  if (done) progress_.begin();
  return done;
}

std::size_t CudaCopyEngine::store(std::byte* to, ByteView from, MoveTicket& ticket) {
  if (is_device_word(to, from.size())) {
    std::uint64_t value = 0;
    std::memcpy(&value, from.data(), from.size());
    if (!write_word(to, value, from.size())) return 0;
    forget(to, from.size());
    ticket = progress_.latest();
    return from.size();
  }
  if (!progress_.may_begin()) return 0;
  const std::size_t taken = progress_.reach(to, std::min(from.size(), stream_->slot_bytes()));
  if (taken == 0) return 0;
  const std::optional<std::uint32_t> slot = slots_.take(progress_.done());
  if (!slot) return 0;
  ticket = progress_.begin();
  slots_.free_after(ticket, *slot);
  forget(to, taken);
  return progress_.check(stream_->store(to, *slot, from.first(taken))) ? taken : 0;
}

bool CudaCopyEngine::copy(std::byte* to, const std::byte* from, std::size_t count,
                          MoveTicket& ticket) {
  if (count == 0) return true;
  // Needs at most three steps, since each end may lie in two allocations.
  if (!progress_.may_begin()) return false;
  forget(to, count);
  for (std::size_t done = 0; done < count;) {
    const std::size_t left = progress_.reach(to + done, count - done);
    const std::size_t taken = left == 0 ? 0 : progress_.reach(from + done, left);
    if (taken == 0 || !progress_.check(stream_->copy(to + done, from + done, taken))) return false;
    done += taken;
  }
  ticket = progress_.begin();
  return true;
}

bool CudaCopyEngine::step_atomic(AtomicMove& move, std::byte* at) {
  const std::uint64_t place = address(at) & ~std::uint64_t{7};
  const std::size_t offset = address(at) - place;
  std::uint64_t* known = words_.find(place);
  if (known == nullptr) {
    if (move.reading.size() == 0) {
      move.reading = stage(at - offset, 8);
      if (move.reading.size() != 0) words_.begin_reading(move, place);
      return false;
    }
    if (!is_done(move.reading.ticket)) return false;
    std::uint64_t value = 0;
    std::memcpy(&value, move.reading.bytes(), sizeof value);
    if (!words_.end_reading(move, place)) return false;  // changed meanwhile: read again
    known = words_.add(place, value);
  } else if (move.reading.size() != 0) {
    static_cast<void>(words_.end_reading(move, place));  // another move has read it meanwhile
  }
  std::array<std::byte, 8> word;
  std::memcpy(word.data(), known, word.size());
  move.old_value = 0;
  std::memcpy(&move.old_value, word.data() + offset, move.work.bytes);
  const std::uint64_t value = apply_atomic(move.work, move.old_value);
  if (!write_word(at, value, move.work.bytes)) return false;
  std::memcpy(word.data() + offset, &value, move.work.bytes);
  std::memcpy(known, word.data(), word.size());
  if (!move.own_word) words_.drop(place);
  words_.note_change(place);
  move.ticket = progress_.latest();
  return true;
}

bool CudaCopyEngine::is_done(MoveTicket ticket) {
  return ticket <= progress_.done();
}

bool CudaCopyEngine::flush() {
  return progress_.flush();
}

bool CudaCopyEngine::is_moving() {
  const bool any = flush();
  // Steps that were enqueued before the failed call may still run; they wait for nobody.
  return has_failed() ? !settle() : any;
}

Status CudaCopyEngine::drain() {
  return wait_until_still([this] { return is_moving(); }, is_stuck_);
}

void CudaCopyEngine::forget(const std::byte* at, std::size_t count) {
  words_.forget(at, count);
}

}  // namespace oriel::net
