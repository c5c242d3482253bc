// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/data_mover_cuda.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "net/copy/copy_stream_cuda.hpp"
#include "net/copy/host_memory.hpp"

namespace oriel::net {
namespace {

/// How long the count may stand still before the driver is asked whether the stream is alive.
constexpr std::chrono::milliseconds kSilence{20};

std::uint64_t address(const std::byte* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

bool is_device_word(const std::byte* at, std::size_t count) {
  return (count == 4 || count == 8) && address(at) % count == 0;
}

}  // namespace

Result<std::unique_ptr<CudaMover>> CudaMover::create(const Options& options) {
  ORIEL_TRY(auto stream, CudaCopyStream::create(options.device, options.slot_bytes, options.slots));
  return std::make_unique<CudaMover>(std::move(stream), options.slots);
}

CudaMover::CudaMover(std::unique_ptr<CopyStream> stream, std::uint32_t slots)
    : stream_(std::move(stream)), staged_most_(slots - slots / 3), kept_most_(staged_most_ / 2) {
  for (std::uint32_t slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
}

CudaMover::~CudaMover() = default;

bool CudaMover::begun_well(Status step) {
  if (!step.ok() && failure_.ok()) {
    failure_ = std::move(step);
    Log().warn("a software NIC moves no bytes of its GPU any more: {}",
               failure_.error().to_string());
  }
  return failure_.ok();
}

std::size_t CudaMover::reach(const std::byte* at, std::size_t count) {
  const std::size_t most = stream_->reach(at, count);
  if (most == 0 && count != 0) {
    static_cast<void>(begun_well(
        Error(ErrorCode::internal,
              fmt::format("{} bytes at {} are no memory that a software NIC's process has", count,
                          static_cast<const void*>(at)))));
  }
  return most;
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
  --staged_;
  if (part.is_kept) --kept_;
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
  return staged_ < staged_most_ ? stage(from, count) : StagedPart();
}

bool CudaMover::keep(StagedPart& part) {
  if (!part.is_kept && kept_ < kept_most_) {
    part.is_kept = true;
    ++kept_;
  }
  return part.is_kept;
}

StagedPart CudaMover::stage(const std::byte* from, std::size_t count) {
  std::uint32_t slot = 0;
  if (!failure_.ok() || !stream_->has_room()) return {};
  const std::size_t taken = reach(from, std::min(count, stream_->slot_bytes()));
  if (taken == 0 || !take_slot(slot)) return {};
  StagedPart part(*this, stream_->slot(slot), taken, slot);
  ++staged_;
  part.ticket = begun();
  if (!begun_well(stream_->load(slot, from, taken))) return {};
  return part;
}

bool CudaMover::write_word(std::byte* to, std::uint64_t value, std::size_t bytes) {
  if (!failure_.ok() || !stream_->has_room() || reach(to, bytes) == 0) return false;
  const bool done = begun_well(stream_->write(to, value, bytes));
  if (done) begun();
  return done;
}

std::size_t CudaMover::store(std::byte* to, ByteView from, MoveTicket& ticket) {
  if (is_device_word(to, from.size())) {
    std::uint64_t value = 0;
    std::memcpy(&value, from.data(), from.size());
    if (!write_word(to, value, from.size())) return 0;
    forget(to, from.size());
    ticket = told_ + 1;
    return from.size();
  }
  std::uint32_t slot = 0;
  if (!failure_.ok() || !stream_->has_room()) return 0;
  const std::size_t taken = reach(to, std::min(from.size(), stream_->slot_bytes()));
  if (taken == 0 || !take_slot(slot)) return 0;
  ticket = begun();
  busy_.push_back({ticket, slot});
  forget(to, taken);
  return begun_well(stream_->store(to, slot, from.first(taken))) ? taken : 0;
}

bool CudaMover::copy(std::byte* to, const std::byte* from, std::size_t count, MoveTicket& ticket) {
  if (count == 0) return true;
  // Each end may lie in two allocations, so there are three steps at most.
  if (!failure_.ok() || !stream_->has_room()) return false;
  forget(to, count);
  for (std::size_t done = 0; done < count;) {
    const std::size_t left = reach(to + done, count - done);
    const std::size_t taken = left == 0 ? 0 : reach(from + done, left);
    if (taken == 0 || !begun_well(stream_->copy(to + done, from + done, taken))) return false;
    done += taken;
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
      move.reading = stage(at - offset, 8);
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
  return ticket <= stream_->told();
}

bool CudaMover::flush() {
  if (dirty_ && failure_.ok() && stream_->has_room() && begun_well(stream_->tell(told_ + 1))) {
    ++told_;
    dirty_ = false;
  }
  if (!dirty_ && is_done(told_)) {
    last_seen_ = told_;
    return false;
  }
  look_after_stream();
  return failure_.ok();
}

void CudaMover::look_after_stream() {
  if (!failure_.ok()) return;
  const MoveTicket seen = stream_->told();
  const TimePoint now = SteadyClock::instance().now();
  if (seen != last_seen_ || looked_ == TimePoint{}) {
    last_seen_ = seen;
    looked_ = now;
    return;
  }
  if (now - looked_ < kSilence) return;
  looked_ = now;
  static_cast<void>(begun_well(stream_->look()));
}

bool CudaMover::is_moving() {
  const bool any = flush();
  // What was enqueued before the call that failed may still run, and it waits for nobody.
  return failure_.ok() ? any : !settle();
}

Status CudaMover::drain() {
  return wait_until_still([this] { return is_moving(); }, is_stuck_);
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
