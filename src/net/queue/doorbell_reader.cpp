// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/queue/doorbell_reader.hpp"

#include <atomic>

#include "net/queue/byte_order.hpp"

namespace oriel::net {
namespace {

template <class Word>
Word acquire(const Word* address) {
  return std::atomic_ref<Word>(*const_cast<Word*>(address)).load(std::memory_order_acquire);
}

std::uint16_t big16_of(const std::uint32_t* address) {
  const std::uint32_t raw = acquire(address);
  return static_cast<std::uint16_t>(load_big32(reinterpret_cast<const std::byte*>(&raw)));
}

std::uint16_t index_in(std::uint64_t doorbell) {
  return static_cast<std::uint16_t>(load_big32(reinterpret_cast<const std::byte*>(&doorbell)) >> 8);
}

}  // namespace

std::uint16_t published_end(const std::uint64_t* doorbell, const std::uint32_t* record,
                            DoorbellMode mode, std::uint64_t end) {
  if (mode != DoorbellMode::alone) return big16_of(record + 1);
  const std::uint64_t word = acquire(doorbell);
  return word == 0 ? static_cast<std::uint16_t>(end) : index_in(word);
}

std::uint16_t DoorbellReader::sends() const {
  return big16_of(record_ + 1);
}

bool DoorbellReader::has_more_than(std::uint64_t end) const {
  if (mode_ == DoorbellMode::alone) return acquire(doorbell_) != seen_;
  return sends() != static_cast<std::uint16_t>(end);
}

std::uint16_t DoorbellReader::receives() const {
  return big16_of(record_);
}

bool DoorbellReader::poll() {
  const std::uint64_t now = acquire(doorbell_);
  if (now == seen_) return false;
  seen_ = now;
  return true;
}

DoorbellReader::Poll DoorbellReader::poll(std::uint64_t end, std::uint64_t completed) {
  Poll poll;
  poll.end = end;
  const auto* raw = reinterpret_cast<const std::byte*>(&seen_);
  if (load_big32(raw + 4) >> 8 != queue_) return poll;  // for another queue
  const std::uint16_t rung = index_in(seen_);
  const std::uint16_t recorded = mode_ == DoorbellMode::alone ? rung : sends();
  const bool behind = static_cast<std::int16_t>(recorded - rung) < 0;
  if (behind) {
    poll.complaint = Complaint::record_behind;
    return poll;
  }
  const std::uint16_t wanted = goes_by_record_ ? recorded : rung;
  goes_by_record_ = false;
  const std::uint64_t next =
      end + static_cast<std::uint16_t>(wanted - static_cast<std::uint16_t>(end));
  if (next - completed > depth_) {
    poll.complaint = Complaint::wrong_doorbell;
    return poll;
  }
  poll.rung = next != end;
  poll.end = next;
  return poll;
}

}  // namespace oriel::net
