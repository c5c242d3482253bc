// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/soft_queue.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "net/queue/queue_records.hpp"

namespace oriel::net {
namespace {

bool is_aligned(const void* address, std::size_t to) {
  return reinterpret_cast<std::uintptr_t>(address) % to == 0;
}

}  // namespace

const char* to_string(QueueState state) {
  switch (state) {
    case QueueState::reset:
      return "reset";
    case QueueState::init:
      return "init";
    case QueueState::ready_to_receive:
      return "ready to receive";
    case QueueState::ready_to_send:
      return "ready to send";
    case QueueState::error:
      return "error";
  }
  return "unknown";
}

Status check_setup(const QueueSetup& setup) {
  const QueueMemory& memory = setup.memory;
  if (!std::has_single_bit(memory.depth) || memory.depth < 128 || memory.depth > 32768) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a send queue of {} WQEBBs: it takes a power of two from 128 to 32768",
                             memory.depth))
        .with_hint("set QueueMemory::depth to an allowed value");
  }
  if (memory.ring == nullptr || memory.record == nullptr || memory.doorbell == nullptr ||
      memory.completions == nullptr || !is_aligned(memory.ring, 64) ||
      !is_aligned(memory.completions, 64) || !is_aligned(memory.record, 4) ||
      !is_aligned(memory.doorbell, 8) || !is_aligned(memory.first_error, 8) ||
      !is_aligned(memory.receive_completions, 64)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a queue's ring {}, doorbell {}, record {}, completions {}, those of "
                             "receives {} or first error {} are missing or not aligned",
                             fmt::ptr(memory.ring), fmt::ptr(memory.doorbell),
                             fmt::ptr(memory.record), fmt::ptr(memory.completions),
                             fmt::ptr(memory.receive_completions), fmt::ptr(memory.first_error)))
        .with_hint(
            "align the ring and completions to 64 bytes, doorbell and error to 8, the record to 4");
  }
  const bool has_receives = memory.receive_completions != nullptr;
  if (memory.receive_count > 65536 || has_receives != std::has_single_bit(memory.receive_count) ||
      (!has_receives && memory.receive_count != 0)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a completion queue of {} elements for receives: a power of two up "
                             "to 65536",
                             memory.receive_count))
        .with_hint(
            "set QueueMemory::receive_count to an allowed value, or pass no receive_completions "
            "and 0");
  }
  if (setup.number > 0xffffff) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a queue with the number {:#x}: numbers have 24 bits", setup.number))
        .with_hint("pass a number below 0x1000000");
  }
  if (setup.named > 0xffffff) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("a queue named {:#x}: names have 24 bits", setup.named))
        .with_hint("pass a name below 0x1000000");
  }
  if (setup.piece_bytes == 0 || setup.piece_bytes > kPieceBytesMost) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("pieces of {} bytes: 1 to {} can cross the wire", setup.piece_bytes,
                             kPieceBytesMost))
        .with_hint("set QueueSetup::piece_bytes to an allowed value");
  }
  return {};
}

SoftQueue::SoftQueue(const QueueSetup& setup, std::uint32_t number, NicContext& nic)
    : setup_(setup),
      number_(number),
      nic_(nic),
      doorbell_(setup.memory.doorbell, setup.memory.record, setup.named != 0 ? setup.named : number,
                setup.memory.depth, setup.mode),
      requester_(setup, number, nic),
      responder_(setup, number, nic) {}

Status SoftQueue::expect(QueueState state, const char* next) const {
  if (state_ == state) return {};
  return Error(ErrorCode::invalid_usage, fmt::format("queue {:#x} cannot go from \"{}\" to \"{}\"",
                                                     number_, to_string(state_), next))
      .with_hint("go through reset, init, ready to receive and ready to send in this order");
}

Status SoftQueue::to_init() {
  ORIEL_CHECK(expect(QueueState::reset, "init"));
  state_ = QueueState::init;
  return {};
}

Status SoftQueue::to_ready_to_receive(const QueuePeer& peer) {
  ORIEL_CHECK(expect(QueueState::init, "ready to receive"));
  requester_.connect(peer);
  responder_.connect(peer);
  state_ = QueueState::ready_to_receive;
  return {};
}

Status SoftQueue::to_ready_to_send() {
  ORIEL_CHECK(expect(QueueState::ready_to_receive, "ready to send"));
  static_cast<void>(doorbell_.poll());  // drops earlier rings
  state_ = QueueState::ready_to_send;
  return {};
}

Status SoftQueue::probe() {
  // The peer counts a probe as a request. A NIC that takes the queue over would use its number
  // again.
  if (setup_.records != nullptr) {
    return Error(ErrorCode::invalid_usage,
                 fmt::format("queue {:#x} may go on at another NIC and is not probed", number_))
        .with_hint("probe its paths instead");
  }
  if (state_ == QueueState::ready_to_send) requester_.probe();
  return {};
}

QueueReport SoftQueue::report() const {
  QueueReport report;
  report.state = state_;
  if (setup_.records == nullptr) return report;
  report.completed = setup_.records->completed;
  report.error = setup_.records->error;
  report.refused = setup_.records->refused;
  report.last_received = requester_.last_received();
  return report;
}

bool SoftQueue::is_idle() const {
  if (state_ != QueueState::ready_to_send || nic_.sends_nothing) return true;
  return requester_.completed() == requester_.end() && !doorbell_.has_more_than(requester_.end());
}

Status SoftQueue::to_error() {
  requester_.fail(Syndrome::flushed, Complaint::none);
  state_ = QueueState::error;
  return {};
}

void SoftQueue::fence() {
  static_cast<void>(to_error());
  responder_.end();
}

bool SoftQueue::poll_doorbell() {
  if (!doorbell_.poll()) return false;
  const DoorbellReader::Poll poll = doorbell_.poll(requester_.end(), requester_.completed());
  if (poll.complaint != Complaint::none) {
    requester_.fail(Syndrome::local_operation, poll.complaint);
    return true;
  }
  requester_.ring(poll.end);
  return poll.rung;
}

bool SoftQueue::progress(TimePoint now) {
  bool any = false;
  switch (state_) {
    case QueueState::reset:
    case QueueState::init:
    case QueueState::ready_to_receive:
      static_cast<void>(doorbell_.poll());
      break;
    case QueueState::ready_to_send:
      any = poll_doorbell();
      if (!requester_.failed()) any = requester_.progress(now) || any;
      break;
    case QueueState::error:
      any = poll_doorbell();
      any = requester_.flush() || any;
      break;
  }
  if (responder_.progress(now)) any = true;
  // A failure of one half ends both, as in an adapter.
  if (state_ != QueueState::error && (requester_.failed() || responder_.failed())) {
    static_cast<void>(to_error());
    any = true;
  }
  if (state_ == QueueState::error && responder_.flush(doorbell_.receives())) any = true;
  return any;
}

void SoftQueue::receive(WireRequest& request, TimePoint now) {
  if (nic_.takes_nothing) return;
  if (state_ != QueueState::ready_to_receive && state_ != QueueState::ready_to_send) return;
  responder_.receive(request, doorbell_.receives(), now);
}

void SoftQueue::receive(WireResponse& response, TimePoint now) {
  if (state_ != QueueState::ready_to_send) return;
  requester_.receive(response, now);
}

Result<std::uint32_t> QueueTable::add(const QueueSetup& setup, NicContext& nic) {
  constexpr std::uint32_t kNumbers = 1u << 24;
  if (queues_.size() >= kNumbers - 1) {
    return Error(ErrorCode::system, "the NIC has no number left for another queue");
  }
  // An odd step visits all numbers, and neighbours differ in every byte.
  while (setup.number == 0) {
    last_number_ = (last_number_ + 0x2f3d1b) % kNumbers;
    if (last_number_ != 0 && !queues_.contains(last_number_)) break;
  }
  const std::uint32_t number = setup.number != 0 ? setup.number : last_number_;
  if (queues_.contains(number)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the NIC has a queue {:#x} already", number))
        .with_hint("pass another number, or 0 for a free one");
  }
  auto queue = std::make_unique<SoftQueue>(setup, number, nic);
  order_.reserve(order_.size() + 1);
  SoftQueue* const made = queue.get();
  queues_.emplace(number, std::move(queue));
  order_.push_back(made);
  return number;
}

void QueueTable::remove(SoftQueue* queue) {
  std::erase(order_, queue);
  queues_.erase(queue->number());
}

void QueueTable::replace(SoftQueue* queue, NicContext& nic) {
  auto fresh = std::make_unique<SoftQueue>(queue->setup(), queue->number(), nic);
  std::replace(order_.begin(), order_.end(), queue, fresh.get());
  queues_[fresh->number()] = std::move(fresh);
}

SoftQueue* QueueTable::find(std::uint32_t number) const {
  const auto it = queues_.find(number);
  return it == queues_.end() ? nullptr : it->second.get();
}

Result<SoftQueue*> QueueTable::find_or_fail(std::uint32_t number) const {
  SoftQueue* const queue = find(number);
  if (queue != nullptr) return queue;
  return Error(ErrorCode::invalid_argument, fmt::format("the NIC has no queue {:#x}", number))
      .with_hint("pass the number of a queue that was made here and not destroyed");
}

}  // namespace oriel::net
