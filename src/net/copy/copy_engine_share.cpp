// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/copy_engine_share.hpp"

#include <algorithm>
#include <utility>

namespace oriel::net {

void CopyEngineShare::note(MoveTicket ticket) {
  last_ = std::max(last_, ticket);
}

StagedPart CopyEngineShare::load(const std::byte* from, std::size_t count) {
  const std::lock_guard lock(mutex_);
  StagedPart part = engine_.load(from, count);
  if (part.size() == 0) return {};
  note(part.ticket);
  part.pass_to(*this);
  return part;
}

bool CopyEngineShare::keep(StagedPart& part) {
  const std::lock_guard lock(mutex_);
  return engine_.keep(part);
}

std::size_t CopyEngineShare::store(std::byte* to, ByteView from, MoveTicket& ticket) {
  const std::lock_guard lock(mutex_);
  const std::size_t taken = engine_.store(to, from, ticket);
  note(ticket);
  return taken;
}

bool CopyEngineShare::copy(std::byte* to, const std::byte* from, std::size_t count,
                           MoveTicket& ticket) {
  const std::lock_guard lock(mutex_);
  const bool started = engine_.copy(to, from, count, ticket);
  note(ticket);
  return started;
}

bool CopyEngineShare::step_atomic(AtomicMove& move, std::byte* at) {
  const std::lock_guard lock(mutex_);
  // Passes the part to the engine, which may release it inside the call; this share's release()
  // would lock the mutex again.
  if (move.reading.size() != 0) move.reading.pass_to(engine_);
  const bool done = engine_.step_atomic(move, at);
  note(move.ticket);
  if (move.reading.size() != 0) {
    note(move.reading.ticket);
    move.reading.pass_to(*this);
  }
  return done;
}

bool CopyEngineShare::is_done(MoveTicket ticket) {
  const std::lock_guard lock(mutex_);
  return engine_.is_done(ticket);
}

bool CopyEngineShare::flush() {
  const std::lock_guard lock(mutex_);
  return engine_.flush() && !engine_.is_done(last_);
}

bool CopyEngineShare::is_moving() {
  const std::lock_guard lock(mutex_);
  static_cast<void>(engine_.flush());
  // Moves that started before the failure may still run.
  return engine_.has_failed() ? !engine_.settle() : !engine_.is_done(last_);
}

Status CopyEngineShare::drain() {
  return wait_until_still([this] { return is_moving(); }, is_stuck_, drain_most_);
}

void CopyEngineShare::forget(const std::byte* at, std::size_t count) {
  const std::lock_guard lock(mutex_);
  engine_.forget(at, count);
}

bool CopyEngineShare::has_failed() const {
  const std::lock_guard lock(mutex_);
  return engine_.has_failed();
}

bool CopyEngineShare::settle() noexcept {
  const std::lock_guard lock(mutex_);
  return engine_.settle();
}

void CopyEngineShare::release(StagedPart& part) noexcept {
  const std::lock_guard lock(mutex_);
  StagedPart back(std::move(part));
  back.pass_to(engine_);  // the engine frees it when it is destroyed
}

}  // namespace oriel::net
