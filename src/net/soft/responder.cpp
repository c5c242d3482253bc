// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/responder.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "net/queue/queue_records.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kAnswersMost = 1024;          // answers waiting for execution or for the wire
constexpr std::uint32_t kReadAttemptsMost = 7;      // retries of a failed read
constexpr std::chrono::milliseconds kReadPause{1};  // doubled after each failure
constexpr std::uint32_t kReceivesFlushedMost = 256;  // per call

}  // namespace

bool AnswerQueue::has(std::uint64_t number) const {
  return std::any_of(answers_.begin(), answers_.end(),
                     [&](const Answer& one) { return one.response.number == number; });
}

void AnswerQueue::add(WireResponse response, bool is_done_write) {
  answers_.push_back({std::move(response), is_done_write});
}

/// Returns whether the next response makes this one unnecessary: a response acknowledges all
/// earlier writes.
bool AnswerQueue::is_covered_by_next() const {
  if (!answers_.front().is_done_write || answers_.size() < 2) return false;
  const WireResponse& next = answers_[1].response;
  return next.number > answers_.front().response.number && next.syndrome == Syndrome::none &&
         !next.not_ready && !next.not_mapped;
}

bool AnswerQueue::send(Wire& wire, WireAddress to) {
  bool any = false;
  for (; !answers_.empty(); answers_.pop_front()) {
    if (is_covered_by_next()) continue;
    WireMessage message{std::move(answers_.front().response)};
    if (!wire.send(to, message)) {
      answers_.front().response = std::move(std::get<WireResponse>(message.body));
      break;
    }
    any = true;
  }
  return any;
}

Responder::Responder(const QueueSetup& setup, std::uint32_t number, NicContext& nic)
    : end_{{setup, number, nic}},
      record_(setup.records != nullptr ? setup.records->delivery : own_record_),
      completions_(setup.memory.receive_completions, setup.memory.receive_count) {}

void Responder::connect(const QueuePeer& peer) {
  end_.peer = peer;
  if (end_.setup.records == nullptr) return;
  record_.hand_over();
  completions_ = CompletionWriter(end_.setup.memory.receive_completions,
                                  end_.setup.memory.receive_count, record_.received);
}

void Responder::receive(WireRequest& request, std::uint16_t receives, TimePoint now) {
  if (failed_ || !end_.is_from_peer(request) || request.number > record_.expected()) return;
  // If the peer does not take its responses, its requests are dropped. It has to retransmit them.
  if (answers_.size() + items_.size() >= kAnswersMost) return;
  if (request.number < record_.expected()) {
    return answer_again(request, now);
  }
  receive_next(request, receives, now);
}

void Responder::receive_next(WireRequest& request, std::uint16_t receives, TimePoint now) {
  const Syndrome syndrome = end_.check(request);
  if (syndrome != Syndrome::none) return refuse(request, syndrome);
  if (!end_.can_reach(request)) {
    WireResponse response = end_.response_to(request);
    response.not_mapped = true;
    return answer(std::move(response));
  }
  if (request.has_immediate && request.kind == WorkKind::write &&
      receives == static_cast<std::uint16_t>(record_.received + immediates_)) {
    WireResponse response = end_.response_to(request);
    response.not_ready = true;
    return answer(std::move(response));
  }
  record_.accept(request.bytes, request.piece_bytes);
  execute(request, now);
}

bool Responder::is_reading() const {
  return std::any_of(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(started_),
                     [](const Item& item) { return item.is_reading(); });
}

/// Returns whether the request has to wait for rendezvous reads, which end at any time. Only a
/// rendezvous read into other memory may start before they have ended.
bool Responder::waits_for_reads(const WireRequest& request, const std::byte* at) const {
  for (std::size_t i = 0; i < started_; ++i) {
    if (!items_[i].is_reading()) continue;
    const bool is_elsewhere = request.source.has_value() &&
                              !items_[i].read->overlaps(at + request.offset, request.piece_bytes);
    if (!is_elsewhere) return true;
  }
  return false;
}

void Responder::begin_read(Item& item, const MemoryKeys::Found& found) {
  const WireRequest& request = item.request;
  item.read = end_.wire().rendezvous_read(
      end_.peer.address, *request.source,
      {request.key, found.memory + request.offset, request.piece_bytes});
}

/// Returns whether the rendezvous read has ended, or has failed for good. A failed read is repeated
/// after a pause. The next attempt reconnects a broken connection.
bool Responder::has_read(Item& item, TimePoint now) {
  if (!item.is_reading()) return true;
  if (!item.read->is_done()) return false;
  if (item.failures == kReadAttemptsMost) {
    fail_first(Syndrome::remote_operation);
    return true;
  }
  if (item.again == TimePoint{}) item.again = now + kReadPause * (std::int64_t{1} << item.failures);
  if (now < item.again) return false;
  item.again = {};
  ++item.failures;
  const WireRequest& request = item.request;
  const auto found = end_.find(request);
  if (found.syndrome == Syndrome::none) {
    begin_read(item, found);
    return false;
  }
  fail_first(found.syndrome);
  return true;
}

/// Fails the first item, and drops those behind it.
void Responder::fail_first(Syndrome syndrome) {
  items_.front().response.syndrome = syndrome;
  fail(syndrome);
  items_.erase(items_.begin() + 1, items_.end());
  started_ = 1;
}

bool Responder::needs(std::uint64_t process, std::uint32_t key, TimePoint now) {
  if (end_.peer.process != process) return false;
  static_cast<void>(advance(now));
  return std::any_of(items_.begin() + static_cast<std::ptrdiff_t>(started_), items_.end(),
                     [&](const Item& item) {
                       return item.request.direct && item.request.kind == WorkKind::write &&
                              item.request.source_key == key;
                     });
}

void Responder::execute(WireRequest& request, TimePoint now) {
  items_.emplace_back();
  Item& item = items_.back();
  item.response = end_.response_to(request);
  item.storing = Storing(std::move(request.payload));
  const bool loads = request.kind == WorkKind::read && !request.direct;
  item.loading = Loading(loads ? request.piece_bytes : 0);
  item.atomic.work = request.atomic;
  if (request.has_immediate) ++immediates_;
  item.request = std::move(request);
  advance(now);
  // The remaining payload is borrowed from the wire, which reuses the memory: copy it.
  if (started_ < items_.size()) items_.back().storing.own();
}

/// Starts requests as far as memory and order allow, and answers those that are done. Requests to
/// host memory are executed when they start, except for rendezvous reads, which take time. Requests
/// to GPU memory start in order and are executed by the GPU in that order. They are answered when
/// the GPU has executed them.
bool Responder::advance(TimePoint now) {
  bool any = false;
  for (; started_ < items_.size() && begin(items_[started_]); ++started_) any = true;
  while (started_ > 0 && finish(items_.front(), now)) {
    items_.pop_front();
    --started_;
    any = true;
  }
  return any;
}

bool Responder::begin(Item& item) {
  const WireRequest& request = item.request;
  if (item.response.syndrome != Syndrome::none) return true;
  // Looked up again: the key may have been deregistered while the request waited.
  const auto found = end_.find(request);
  item.response.syndrome = found.syndrome;
  if (found.syndrome == Syndrome::none) {
    // A request to host memory waits for earlier ones to GPU memory, because nothing else orders
    // the two.
    const bool waits = found.place == MemoryPlace::host && gpu_ticket_ != 0;
    if (waits && !end_.nic.engine(MemoryPlace::gpu).is_done(gpu_ticket_)) return false;
    if (waits_for_reads(request, found.memory)) return false;
    CopyEngine& engine = end_.nic.engine(found.place);
    item.place = found.place;
    if (!begin_in(item, found, engine)) {
      if (!engine.has_failed()) return false;
      item.response.syndrome = Syndrome::remote_operation;
    }
    if (found.place == MemoryPlace::gpu) gpu_ticket_ = std::max(gpu_ticket_, item.ticket);
  }
  if (item.response.syndrome != Syndrome::none) {
    fail(item.response.syndrome);
    items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(started_) + 1, items_.end());
  }
  return true;
}

/// Returns false if something is left that cannot start now.
bool Responder::begin_in(Item& item, const MemoryKeys::Found& found, CopyEngine& engine) {
  const WireRequest& request = item.request;
  std::byte* const at = found.memory + request.offset;
  if (request.kind == WorkKind::atomic) {
    // The local mapping may be misaligned although the peer's address is aligned.
    if (reinterpret_cast<std::uintptr_t>(at) % request.atomic.bytes != 0) {
      item.response.syndrome = Syndrome::remote_operation;
      return true;
    }
    item.atomic.own_word = found.own_words;
    if (!engine.step_atomic(item.atomic, at)) return false;
    item.ticket = item.atomic.ticket;
    item.response.old_value = item.atomic.old_value;
    record_.executed(request.number, item.atomic.old_value);
    return true;
  }
  if (request.kind == WorkKind::read) return item.loading.begin(engine, at);
  if (request.source.has_value()) {
    begin_read(item, found);
    return true;
  }
  if (!request.direct) {
    if (!item.storing.begin(engine, at)) return false;
    item.ticket = item.storing.ticket();
    return true;
  }
  const auto source = end_.find_source(request);
  // The source was mapped when the request was accepted.
  if (source.syndrome != Syndrome::none || source.place != found.place) {
    item.response.syndrome = Syndrome::remote_invalid;
    return true;
  }
  return engine.copy(at, source.memory, request.piece_bytes, item.ticket);
}

/// Answers a request that is done. Returns false if it is not.
bool Responder::finish(Item& item, TimePoint now) {
  const WireRequest& request = item.request;
  CopyEngine& engine = end_.nic.engine(item.place);
  if (item.response.syndrome == Syndrome::none) {
    if (engine.has_failed())
      fail_first(Syndrome::remote_operation);
    else if (!has_read(item, now))
      return false;
  }
  if (item.response.syndrome != Syndrome::none) {
    answer(std::move(item.response));
    return true;
  }
  if (!engine.is_done(item.ticket) || !item.loading.take(engine)) return false;
  if (request.has_immediate) {
    completions_.write({.kind = CompletionRecord::Kind::received_immediate,
                        .queue = end_.number,
                        .index = static_cast<std::uint16_t>(record_.received),
                        .bytes = static_cast<std::uint32_t>(request.bytes),
                        .immediate = request.immediate});
    ++record_.received;
    --immediates_;
  }
  if (request.kind == WorkKind::read) item.response.payload = item.loading.release();
  if (request.kind != WorkKind::atomic) record_.executed(request.number);
  answer(std::move(item.response), request.kind == WorkKind::write);
  return true;
}

void Responder::answer_again(WireRequest& request, TimePoint now) {
  // The first response is still to come.
  const auto is_same = [&](const auto& one) { return one.request.number == request.number; };
  if (std::any_of(items_.begin(), items_.end(), is_same)) return;
  if (answers_.has(request.number)) return;
  WireResponse response = end_.response_to(request);
  if (request.kind == WorkKind::write) return answer(std::move(response), true);
  const Syndrome syndrome = end_.check(request);
  if (syndrome != Syndrome::none) return refuse(request, syndrome);
  if (request.kind == WorkKind::read) return execute(request, now);
  const std::optional<std::uint64_t> kept = record_.old_value(request.number);
  if (!kept.has_value()) return refuse(request, Syndrome::remote_invalid);
  response.old_value = *kept;
  answer(std::move(response));
}

void Responder::refuse(const WireRequest& request, Syndrome syndrome) {
  WireResponse response = end_.response_to(request);
  response.syndrome = syndrome;
  fail(syndrome);
  if (items_.empty()) return answer(std::move(response));
  // The refusal is sent after the responses to earlier requests.
  items_.emplace_back();
  Item& item = items_.back();
  item.request.number = request.number;
  item.response = std::move(response);
}

void Responder::fail(Syndrome syndrome) {
  if (end_.setup.records != nullptr && !failed_) end_.setup.records->refused = syndrome;
  failed_ = true;
}

bool Responder::flush(std::uint16_t receives) {
  // Receives of a queue with records are left for the next NIC.
  if (end_.setup.records != nullptr || end_.setup.memory.receive_count == 0 || !items_.empty()) {
    return false;
  }
  bool any = false;
  for (std::uint32_t i = 0; i < kReceivesFlushedMost; ++i) {
    const auto index = static_cast<std::uint16_t>(record_.received);
    if (index == receives) break;
    completions_.write({.kind = CompletionRecord::Kind::response_error,
                        .queue = end_.number,
                        .index = index,
                        .syndrome = Syndrome::flushed});
    ++record_.received;
    any = true;
  }
  return any;
}

void Responder::end() {
  // Data that has arrived counts as executed, even without a response: a reader may have changed it
  // since. If the GPU's copies have failed, their requests are refused here too, because the record
  // already counts started atomics as executed.
  for (; started_ > 0 && finish(items_.front(), end_.nic.clock->now()); --started_)
    items_.pop_front();
  failed_ = true;
  items_.clear();
  started_ = 0;
  answers_.forget();
}

void Responder::answer(WireResponse response, bool is_done_write) {
  // After end_receiving() a refusal is not the peer's fault: this side has deregistered its keys.
  if (response.syndrome != Syndrome::none && end_.nic.takes_nothing) return;
  answers_.add(std::move(response), is_done_write);
}

bool Responder::progress(TimePoint now) {
  const bool any = advance(now);
  // A queue that was never connected owes no response, and its NIC may have no wire.
  if (answers_.size() == 0) return any;
  return answers_.send(end_.wire(), end_.peer.address) || any;
}

}  // namespace oriel::net
