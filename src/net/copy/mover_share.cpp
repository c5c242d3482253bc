// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/copy/mover_share.hpp"

#include <algorithm>
#include <utility>

namespace oriel::net {

void MoverShare::note(MoveTicket ticket) {
  last_ = std::max(last_, ticket);
}

StagedPart MoverShare::load(const std::byte* from, std::size_t count) {
  const std::lock_guard lock(mutex_);
  StagedPart part = mover_.load(from, count);
  if (part.size() == 0) return {};
  note(part.ticket);
  part.pass_to(*this);
  return part;
}

bool MoverShare::keep(StagedPart& part) {
  const std::lock_guard lock(mutex_);
  return mover_.keep(part);
}

std::size_t MoverShare::store(std::byte* to, ByteView from, MoveTicket& ticket) {
  const std::lock_guard lock(mutex_);
  const std::size_t taken = mover_.store(to, from, ticket);
  note(ticket);
  return taken;
}

bool MoverShare::copy(std::byte* to, const std::byte* from, std::size_t count, MoveTicket& ticket) {
  const std::lock_guard lock(mutex_);
  const bool begun = mover_.copy(to, from, count, ticket);
  note(ticket);
  return begun;
}

bool MoverShare::step_atomic(AtomicMove& move, std::byte* at) {
  const std::lock_guard lock(mutex_);
  // Passes the part to the mover, which may release it inside the call; this share's give_back()
  // would lock the mutex again.
  if (move.reading.size() != 0) move.reading.pass_to(mover_);
  const bool done = mover_.step_atomic(move, at);
  note(move.ticket);
  if (move.reading.size() != 0) {
    note(move.reading.ticket);
    move.reading.pass_to(*this);
  }
  return done;
}

bool MoverShare::is_done(MoveTicket ticket) {
  const std::lock_guard lock(mutex_);
  return mover_.is_done(ticket);
}

bool MoverShare::flush() {
  const std::lock_guard lock(mutex_);
  return mover_.flush() && !mover_.is_done(last_);
}

bool MoverShare::is_moving() {
  const std::lock_guard lock(mutex_);
  static_cast<void>(mover_.flush());
  // Moves that started before the failure may still run.
  return mover_.has_failed() ? !mover_.settle() : !mover_.is_done(last_);
}

Status MoverShare::drain() {
  return wait_until_still([this] { return is_moving(); }, is_stuck_, drain_most_);
}

void MoverShare::forget(const std::byte* at, std::size_t count) {
  const std::lock_guard lock(mutex_);
  mover_.forget(at, count);
}

bool MoverShare::has_failed() const {
  const std::lock_guard lock(mutex_);
  return mover_.has_failed();
}

bool MoverShare::settle() noexcept {
  const std::lock_guard lock(mutex_);
  return mover_.settle();
}

void MoverShare::give_back(StagedPart& part) noexcept {
  const std::lock_guard lock(mutex_);
  StagedPart back(std::move(part));
  back.pass_to(mover_);  // the mover frees it when it is destroyed
}

}  // namespace oriel::net
