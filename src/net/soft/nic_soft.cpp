// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/nic_soft.hpp"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::net {

NicSoft::NicSoft(const Options& options) : NicMemory(options), queues_(random_start()) {}

NicSoft::~NicSoft() {
  try {
    static_cast<void>(settle());
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory to say why not
  }
}

Result<std::uint32_t> NicSoft::create_queue(const QueueSetup& setup) {
  ORIEL_CHECK(check_setup(setup));
  const std::lock_guard lock(mutex_);
  return queues_.add(setup, context_);
}

Status NicSoft::destroy_queue(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, queues_.find_or_fail(number));
  // Removed in any case: the caller frees the queue's memory whatever the GPU still does.
  Status settled = settle();
  queues_.remove(queue);
  return settled;
}

Status NicSoft::to_init(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, queues_.find_or_fail(number));
  return queue->to_init();
}

Status NicSoft::to_ready_to_receive(std::uint32_t number, const QueuePeer& peer) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, queues_.find_or_fail(number));
  if (peer.wire >= context_.wires.size()) {
    return Error(ErrorCode::invalid_argument, fmt::format("the NIC has {} wires and no wire {}",
                                                          context_.wires.size(), peer.wire))
        .with_hint("pass the index of a wire, which starts at 0");
  }
  return queue->to_ready_to_receive(peer);
}

Status NicSoft::to_ready_to_send(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, queues_.find_or_fail(number));
  return queue->to_ready_to_send();
}

Status NicSoft::to_error(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, queues_.find_or_fail(number));
  if (queue->setup().records == nullptr) return queue->to_error();
  // A queue with records may continue on another NIC. A dump there could not wait for data on its
  // way here.
  Status settled = settle();
  queue->fence();
  return settled;
}

Status NicSoft::to_reset(std::uint32_t number) {
  std::unique_lock lock(mutex_);
  ORIEL_CHECK(queues_.find_or_fail(number));
  ORIEL_CHECK(settle());
  // A rendezvous read for the queue must not write memory after the reset.
  const bool is_over = wait_until_none(lock, [&] {
    const SoftQueue* const queue = queues_.find(number);
    return queue != nullptr && queue->is_reading();
  });
  ORIEL_TRY(SoftQueue* const queue, queues_.find_or_fail(number));
  if (!is_over) cut({queue->reads_from()});
  queues_.replace(queue, context_);
  return {};
}

Status NicSoft::connect(std::uint32_t number, const QueuePeer& peer) {
  ORIEL_CHECK(to_init(number));
  ORIEL_CHECK(to_ready_to_receive(number, peer));
  return to_ready_to_send(number);
}

Result<QueueState> NicSoft::state(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const SoftQueue* const queue, queues_.find_or_fail(number));
  return queue->state();
}

Result<QueueReport> NicSoft::report(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(const SoftQueue* const queue, queues_.find_or_fail(number));
  return queue->report();
}

Status NicSoft::ring_again(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, queues_.find_or_fail(number));
  queue->ring_again();
  return {};
}

Status NicSoft::probe(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  ORIEL_TRY(SoftQueue* const queue, queues_.find_or_fail(number));
  return queue->probe();
}

bool NicSoft::progress() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || has_failed()) return false;
  try {
    return turn();
  } catch (const std::exception&) {
    fail_locked();
    return true;
  }
}

bool NicSoft::needs(std::uint64_t peer, std::uint32_t key) {
  bool any = false;
  for (SoftQueue* const queue : queues_.all()) {
    any = queue->needs(peer, key, context_.clock->now()) || any;
  }
  return any;
}

bool NicSoft::go_on() {
  const TimePoint now = context_.clock->now();
  const bool received = receive(now);
  const bool went_on = progress_queues(now);
  for (const auto& wire : context_.wires) wire->end_turn();
  return went_on || received;
}

bool NicSoft::turn() {
  const TimePoint now = context_.clock->now();
  // Responses to requests of the last turn are held back until this end_turn(). They then leave in
  // one message with what the rank has posted meanwhile.
  bool any = progress_queues(now);
  for (const auto& wire : context_.wires) wire->end_turn();
  if (receive(now)) {
    any = true;
    progress_queues(now);
  }
  return (context_.gpu_engine != nullptr && context_.gpu_engine->flush()) || any;
}

bool NicSoft::receive(TimePoint now) {
  bool any = false;
  for (const auto& wire : context_.wires) {
    WireMessage message;
    for (std::size_t i = 0; i < kMessagesMost && wire->receive(message); ++i) {
      any = true;
      if (auto* const request = std::get_if<WireRequest>(&message.body)) {
        SoftQueue* const queue = queues_.find(request->to_queue);
        if (queue != nullptr) queue->receive(*request, now);
      } else {
        auto& response = std::get<WireResponse>(message.body);
        SoftQueue* const queue = queues_.find(response.to_queue);
        if (queue != nullptr) queue->receive(response, now);
      }
    }
    wire->end_receive();
  }
  return any;
}

bool NicSoft::progress_queues(TimePoint now) {
  bool any = false;
  for (SoftQueue* const queue : queues_.all()) any = queue->progress(now) || any;
  return any;
}

bool NicSoft::is_idle() const {
  const std::lock_guard lock(mutex_);
  return std::all_of(queues_.all().begin(), queues_.all().end(),
                     [](const SoftQueue* queue) { return queue->is_idle(); });
}

bool NicSoft::is_idle(std::uint32_t number) const {
  const std::lock_guard lock(mutex_);
  const SoftQueue* const queue = queues_.find(number);
  return queue == nullptr || queue->is_idle();
}

}  // namespace oriel::net
