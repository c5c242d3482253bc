// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/data_mover.hpp"

#include <cstring>

#include "net/host_memory.hpp"

namespace oriel::net {

std::size_t HostMover::store(std::byte* to, ByteView from, MoveTicket& /*ticket*/) {
  store_bytes(to, from);
  return from.size();
}

bool HostMover::copy(std::byte* to, const std::byte* from, std::size_t count,
                     MoveTicket& /*ticket*/) {
  // Words at once, as if they had come by the wire.
  if (count == 4 || count == 8) {
    std::byte word[8];
    load_bytes(from, word, count);
    store_bytes(to, ByteView(word, count));
  } else if (count != 0) {
    std::memmove(to, from, count);
  }
  return true;
}

bool HostMover::step_atomic(AtomicMove& move, std::byte* at) {
  move.old_value = execute_atomic(move.work, at);
  return true;
}

bool Loading::begin(DataMover& mover, const std::byte* from) {
  static_cast<void>(take(mover));  // what has arrived makes room
  while (begun_ < total_) {
    StagedPart part = mover.load(from + begun_, total_ - begun_);
    if (part.size() == 0) return false;
    begun_ += part.size();
    parts_.push_back(std::move(part));
  }
  return true;
}

bool Loading::take(DataMover& mover) {
  while (!parts_.empty() && mover.is_done(parts_.front().ticket)) {
    const StagedPart& part = parts_.front();
    const std::size_t at = bytes_.size();
    bytes_.resize(at + part.size());
    load_bytes(part.bytes(), bytes_.data() + at, part.size());
    parts_.pop_front();
  }
  return bytes_.size() == total_;
}

bool Storing::begin(DataMover& mover, std::byte* to) {
  while (begun_ < bytes_.size()) {
    const std::size_t taken = mover.store(to + begun_, ByteView(bytes_).subspan(begun_), ticket_);
    if (taken == 0) return false;
    begun_ += taken;
  }
  return true;
}

}  // namespace oriel::net
