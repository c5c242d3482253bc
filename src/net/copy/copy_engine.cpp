// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/copy_engine.hpp"

#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "net/copy/host_memory.hpp"

namespace oriel::net {
namespace {

// Smallest part that is sent from its slot. A smaller one is copied out, which frees a slot for
// many more. Also, a word of host memory must be read by one load.
constexpr std::size_t kExposedLeast = 1024;

}  // namespace

Status wait_until_still(const std::function<bool()>& is_moving, bool& is_stuck, Duration most) {
  const Clock& clock = SteadyClock::instance();
  const Deadline deadline = Deadline::after(is_stuck ? Duration::zero() : most, clock);
  while (is_moving()) {
    is_stuck = deadline.expired(clock.now());
    if (is_stuck) {
      const double seconds = std::chrono::duration<double>(most).count();
      return Error(ErrorCode::timeout,
                   fmt::format("a GPU has not ended a software NIC's copies in {:.3g} s", seconds));
    }
    std::this_thread::yield();
  }
  is_stuck = false;
  return {};
}

std::size_t HostCopyEngine::store(std::byte* to, ByteView from, MoveTicket& /*ticket*/) {
  store_bytes(to, from);
  return from.size();
}

bool HostCopyEngine::copy(std::byte* to, const std::byte* from, std::size_t count,
                          MoveTicket& /*ticket*/) {
  // Copies words by one load and one store, as if they had come by the wire.
  if (count == 4 || count == 8) {
    std::byte word[8];
    load_bytes(from, word, count);
    store_bytes(to, ByteView(word, count));
  } else if (count != 0) {
    std::memmove(to, from, count);
  }
  return true;
}

bool HostCopyEngine::step_atomic(AtomicMove& move, std::byte* at) {
  move.old_value = execute_atomic(move.work, at);
  return true;
}

bool Loading::begin(CopyEngine& engine, const std::byte* from) {
  static_cast<void>(take(engine));  // parts that have arrived make room
  while (started_ < total_) {
    StagedPart part = engine.load(from + started_, total_ - started_);
    if (part.size() == 0) return false;
    started_ += part.size();
    parts_.push_back(std::move(part));
  }
  return true;
}

bool Loading::take(CopyEngine& engine) {
  for (; taken_ < parts_.size() && engine.is_done(parts_[taken_].ticket); ++taken_) {
    StagedPart& part = parts_[taken_];
    const bool is_whole = part.size() == total_ && total_ >= kExposedLeast;
    if (exposes_ && is_whole && engine.keep(part)) return true;
    if (bytes_.empty()) bytes_.reserve(total_);
    const std::size_t at = bytes_.size();
    bytes_.resize(at + part.size());
    load_bytes(part.bytes(), bytes_.data() + at, part.size());
    part = {};
  }
  return bytes_.size() == total_;
}

Payload Loading::expose() const {
  if (taken_ == parts_.size()) return Payload::borrow(bytes_);
  const StagedPart& part = parts_[taken_];
  return Payload::borrow({part.bytes(), part.size()});
}

bool Storing::begin(CopyEngine& engine, std::byte* to) {
  while (started_ < bytes_.size()) {
    const std::size_t taken = engine.store(to + started_, bytes_.part_at(started_), ticket_);
    if (taken == 0) return false;
    started_ += taken;
  }
  bytes_ = {};
  started_ = 0;
  return true;
}

}  // namespace oriel::net
