// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/responder.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/short_memory.hpp"
#include "net/queue/queue_records.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kAnswersMost = 1024;           // that wait for their time, or for the wire
constexpr std::uint32_t kFetchAttemptsMost = 7;      // of the same bytes, if they fail
constexpr std::chrono::milliseconds kFetchPause{1};  // doubled each time
constexpr std::uint32_t kReceivesFlushedMost = 256;  // of one call

Access right_for(WorkKind kind) {
  if (kind == WorkKind::write) return kRemoteWrite;
  return kind == WorkKind::read ? kRemoteRead : kRemoteAtomic;
}

// Whether the fields agree with each other; a wire brings whatever its other end says.
bool is_sound(const WireRequest& request) {
  switch (request.kind) {
    case WorkKind::write:
      if (request.direct && request.source.has_value()) return false;
      if (request.payload.size() !=
          (request.direct || request.source.has_value() ? 0 : request.piece_bytes)) {
        return false;
      }
      break;
    case WorkKind::read:
      if (!request.payload.empty() || request.source.has_value()) return false;
      break;
    case WorkKind::atomic:
      if (request.source.has_value()) return false;
      if (request.atomic.bytes != 4 && request.atomic.bytes != 8) return false;
      if (request.bytes != request.atomic.bytes || request.offset != 0) return false;
      break;
    default:
      return false;
  }
  return request.offset <= request.bytes && request.piece_bytes <= kPieceBytesMost &&
         request.piece_bytes <= request.bytes - request.offset;
}

}  // namespace

Responder::Responder(const QueueSetup& setup, std::uint32_t number, NicContext& nic)
    : setup_(setup),
      number_(number),
      nic_(nic),
      record_(setup.records != nullptr ? setup.records->delivery : own_record_),
      completions_(setup.memory.receive_completions, setup.memory.receive_count) {}

void Responder::connect(const QueuePeer& peer) {
  peer_ = peer;
  if (setup_.records == nullptr) return;
  record_.hand_over();
  completions_ = CompletionWriter(setup_.memory.receive_completions, setup_.memory.receive_count,
                                  record_.received);
}

void Responder::receive(WireRequest& request, std::uint16_t receives, TimePoint now) {
  if (!(request.from == peer_.address) || request.from_queue != peer_.queue ||
      request.epoch != peer_.epoch) {
    ++nic_.counters.strays;
    return;
  }
  if (failed_ || request.number > record_.expected()) return;
  // A peer that asks and does not take the answers is not heard, and has to ask again.
  if (outgoing_.size() + late_.size() + items_.size() >= kAnswersMost) return;
  if (request.number < record_.expected()) {
    ++nic_.counters.duplicates;
    return answer_again(request, now);
  }
  receive_next(request, receives, now);
}

WireResponse Responder::response_to(const WireRequest& request) const {
  WireResponse response;
  response.to_queue = peer_.queue;
  response.epoch = peer_.epoch;
  response.number = request.number;
  return response;
}

void Responder::receive_next(WireRequest& request, std::uint16_t receives, TimePoint now) {
  const Syndrome syndrome = check(request);
  if (syndrome != Syndrome::none) return refuse(request, syndrome, now);
  const bool is_out_of_reach = (request.direct && !is_mapped(request)) ||
                               (request.source.has_value() && !can_fetch(request));
  if (request.kind == WorkKind::write && is_out_of_reach) {
    WireResponse response = response_to(request);
    response.not_mapped = true;
    return answer(std::move(response), now);
  }
  if (request.has_immediate && request.kind == WorkKind::write &&
      receives == static_cast<std::uint16_t>(record_.received + immediates_)) {
    WireResponse response = response_to(request);
    response.not_ready = true;
    return answer(std::move(response), now);
  }
  record_.accept(request.bytes, request.piece_bytes);
  // What fetches does not overtake what fetches, but writes may overtake both.
  const bool fetches = request.kind != WorkKind::write;
  const bool put_off =
      request.kind == WorkKind::read && nic_.faults.reads_behind_writes != Duration::zero();
  if (fetches && (put_off || !late_.empty())) {
    const Duration delay = put_off ? nic_.faults.reads_behind_writes : Duration::zero();
    Late late{std::move(request), now + delay};
    despite_short_memory([&] { late_.push_back(std::move(late)); });
    return;
  }
  execute(request, now);
}

Syndrome Responder::check(const WireRequest& request) const {
  if (!is_sound(request)) return Syndrome::remote_invalid;
  if (request.kind == WorkKind::atomic && request.address % request.atomic.bytes != 0) {
    return Syndrome::remote_invalid;
  }
  return nic_.keys
      .find_remote(setup_.domain, request.key, request.address, request.bytes,
                   right_for(request.kind))
      .syndrome;
}

/// Whether the bytes of a direct write can be copied.
bool Responder::is_mapped(const WireRequest& request) const {
  const auto source = nic_.peers.find(peer_.process, request.source_key, request.source_address,
                                      request.piece_bytes);
  const auto target = nic_.keys.find_remote(setup_.domain, request.key, request.address,
                                            request.bytes, kRemoteWrite);
  return source.syndrome == Syndrome::none && source.place == target.place;
}

/// Whether its bytes can be fetched by the wire.
bool Responder::can_fetch(const WireRequest& request) const {
  if (setup_.records != nullptr || request.piece_bytes == 0) return false;
  const auto target = nic_.keys.find_remote(setup_.domain, request.key, request.address,
                                            request.bytes, kRemoteWrite);
  return target.place == MemoryPlace::host && nic_.wires[peer_.wire]->can_fetch(peer_.address);
}

bool Responder::is_fetching() const {
  return std::any_of(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(begun_),
                     [](const Item& item) { return item.is_fetching(); });
}

/// What is being fetched lands when it will. Nothing else begins before, but what is to be fetched
/// to elsewhere.
bool Responder::waits_for_fetches(const WireRequest& request, const std::byte* at) const {
  for (std::size_t i = 0; i < begun_; ++i) {
    if (!items_[i].is_fetching()) continue;
    const bool is_elsewhere = request.source.has_value() &&
                              !items_[i].fetch->overlaps(at + request.offset, request.piece_bytes);
    if (!is_elsewhere) return true;
  }
  return false;
}

void Responder::fetch(Item& item, const MemoryKeys::Found& found) {
  const WireRequest& request = item.request;
  despite_short_memory([&] {
    item.fetch = nic_.wires[peer_.wire]->fetch(
        peer_.address, *request.source,
        {request.key, found.memory + request.offset, request.piece_bytes});
  });
  ++nic_.counters.fetches;
  nic_.counters.fetched_bytes += request.piece_bytes;
}

/// Whether what is to be fetched is there, or never will be. A connection that has broken is made
/// anew by the next attempt.
bool Responder::has_fetched(Item& item, TimePoint now) {
  if (!item.is_fetching()) return true;
  if (!item.fetch->is_done()) return false;
  if (item.failures == kFetchAttemptsMost) {
    fail_first(Syndrome::remote_operation);
    return true;
  }
  if (item.again == TimePoint{})
    item.again = now + kFetchPause * (std::int64_t{1} << item.failures);
  if (now < item.again) return false;
  item.again = {};
  ++item.failures;
  const WireRequest& request = item.request;
  const auto found = nic_.keys.find_remote(setup_.domain, request.key, request.address,
                                           request.bytes, kRemoteWrite);
  if (found.syndrome == Syndrome::none) {
    fetch(item, found);
    return false;
  }
  fail_first(found.syndrome);
  return true;
}

/// The first of the items cannot be done, and those behind it will not be.
void Responder::fail_first(Syndrome syndrome) {
  items_.front().response.syndrome = syndrome;
  fail(syndrome);
  items_.erase(items_.begin() + 1, items_.end());
  begun_ = 1;
}

bool Responder::needs(std::uint64_t process, std::uint32_t key, TimePoint now) {
  if (peer_.process != process) return false;
  static_cast<void>(advance(now));
  return std::any_of(items_.begin() + static_cast<std::ptrdiff_t>(begun_), items_.end(),
                     [&](const Item& item) {
                       return item.request.direct && item.request.kind == WorkKind::write &&
                              item.request.source_key == key;
                     });
}

void Responder::execute(WireRequest& request, TimePoint now) {
  despite_short_memory([this] { items_.emplace_back(); });
  Item& item = items_.back();
  item.response = response_to(request);
  item.storing = Storing(std::move(request.payload));
  const bool loads = request.kind == WorkKind::read && !request.direct;
  item.loading = Loading(loads ? request.piece_bytes : 0);
  item.atomic.work = request.atomic;
  if (request.has_immediate) ++immediates_;
  item.request = std::move(request);
  advance(now);
  // What could not begin at once is still the wire's, which takes it back.
  if (begun_ < items_.size()) despite_short_memory([this] { items_.back().storing.own(); });
}

/// As far as memory and order allow: all of it where the memory is the host's. What is in a GPU's
/// memory begins in order, is done in that order by the GPU, and is answered when it is done.
bool Responder::advance(TimePoint now) {
  bool any = false;
  for (; begun_ < items_.size() && begin(items_[begun_]); ++begun_) any = true;
  while (begun_ > 0 && finish(items_.front(), now)) {
    items_.pop_front();
    --begun_;
    any = true;
  }
  return any;
}

bool Responder::begin(Item& item) {
  const WireRequest& request = item.request;
  if (item.response.syndrome != Syndrome::none) return true;
  // Looked up again: the key may have been given back while the request waited for its turn.
  const auto found = nic_.keys.find_remote(setup_.domain, request.key, request.address,
                                           request.bytes, right_for(request.kind));
  item.response.syndrome = found.syndrome;
  if (found.syndrome == Syndrome::none) {
    // The host's memory does not wait for the GPU's by itself.
    const bool waits = found.place == MemoryPlace::host && gpu_ticket_ != 0;
    if (waits && !nic_.mover(MemoryPlace::gpu).is_done(gpu_ticket_)) return false;
    if (waits_for_fetches(request, found.memory)) return false;
    DataMover& mover = nic_.mover(found.place);
    item.place = found.place;
    if (!begin_in(item, found, mover)) {
      if (!mover.has_failed()) return false;
      item.response.syndrome = Syndrome::remote_operation;
    }
    if (found.place == MemoryPlace::gpu) gpu_ticket_ = std::max(gpu_ticket_, item.ticket);
  }
  if (item.response.syndrome != Syndrome::none) {
    fail(item.response.syndrome);
    items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(begun_) + 1, items_.end());
  }
  return true;
}

/// False if there is something left that cannot begin now.
bool Responder::begin_in(Item& item, const MemoryKeys::Found& found, DataMover& mover) {
  const WireRequest& request = item.request;
  std::byte* const at = found.memory + request.offset;
  if (request.kind == WorkKind::atomic) {
    // Mapped elsewhere, what is aligned in the peer's eyes need not be so here.
    if (reinterpret_cast<std::uintptr_t>(at) % request.atomic.bytes != 0) {
      item.response.syndrome = Syndrome::remote_operation;
      return true;
    }
    item.atomic.own_word = found.own_words;
    if (!mover.step_atomic(item.atomic, at)) return false;
    item.ticket = item.atomic.ticket;
    item.response.old_value = item.atomic.old_value;
    record_.executed(request.number, item.atomic.old_value);
    return true;
  }
  if (request.kind == WorkKind::read) return item.loading.begin(mover, at);
  if (request.source.has_value()) {
    fetch(item, found);
    return true;
  }
  if (!request.direct) {
    if (!item.storing.begin(mover, at)) return false;
    item.ticket = item.storing.ticket();
    return true;
  }
  const auto source = nic_.peers.find(peer_.process, request.source_key, request.source_address,
                                      request.piece_bytes);
  // It was mapped when the request was accepted.
  if (source.syndrome != Syndrome::none || source.place != found.place) {
    item.response.syndrome = Syndrome::remote_invalid;
    return true;
  }
  if (!mover.copy(at, source.memory, request.piece_bytes, item.ticket)) return false;
  nic_.count_copy(request.piece_bytes);
  return true;
}

/// Answers a request that is done. False if it is not.
bool Responder::finish(Item& item, TimePoint now) {
  const WireRequest& request = item.request;
  DataMover& mover = nic_.mover(item.place);
  if (item.response.syndrome == Syndrome::none) {
    if (mover.has_failed())
      fail_first(Syndrome::remote_operation);
    else if (!has_fetched(item, now))
      return false;
  }
  if (item.response.syndrome != Syndrome::none) {
    answer(std::move(item.response), now);
    return true;
  }
  if (!mover.is_done(item.ticket) || !item.loading.take(mover)) return false;
  if (request.has_immediate) {
    completions_.write({.kind = CompletionRecord::Kind::received_immediate,
                        .queue = number_,
                        .index = static_cast<std::uint16_t>(record_.received),
                        .bytes = static_cast<std::uint32_t>(request.bytes),
                        .immediate = request.immediate});
    ++record_.received;
    --immediates_;
  }
  if (request.kind == WorkKind::read) item.response.payload = item.loading.release();
  if (request.kind != WorkKind::atomic) record_.executed(request.number);
  const bool is_write = request.kind == WorkKind::write;
  answer(std::move(item.response), is_write ? now : now + nic_.faults.response_delay, is_write);
  return true;
}

void Responder::answer_again(WireRequest& request, TimePoint now) {
  // Its answer is still to come.
  const auto is_same = [&](const auto& one) { return one.request.number == request.number; };
  if (std::any_of(late_.begin(), late_.end(), is_same)) return;
  if (std::any_of(items_.begin(), items_.end(), is_same)) return;
  const auto goes_out = [&](const Outgoing& out) { return out.response.number == request.number; };
  if (std::any_of(outgoing_.begin(), outgoing_.end(), goes_out)) return;
  WireResponse response = response_to(request);
  if (request.kind == WorkKind::write) return answer(std::move(response), now, true);
  const Syndrome syndrome = check(request);
  if (syndrome != Syndrome::none) return refuse(request, syndrome, now);
  if (request.kind == WorkKind::read) return execute(request, now);
  const std::optional<std::uint64_t> kept = record_.old_value(request.number);
  if (!kept.has_value()) return refuse(request, Syndrome::remote_invalid, now);
  response.old_value = *kept;
  answer(std::move(response), now);
}

void Responder::refuse(const WireRequest& request, Syndrome syndrome, TimePoint now) {
  WireResponse response = response_to(request);
  response.syndrome = syndrome;
  fail(syndrome);
  if (items_.empty()) return answer(std::move(response), now);
  // Behind what was asked for before.
  despite_short_memory([this] { items_.emplace_back(); });
  Item& item = items_.back();
  item.request.number = request.number;
  item.response = std::move(response);
}

void Responder::fail(Syndrome syndrome) {
  if (setup_.records != nullptr && !failed_) setup_.records->refused = syndrome;
  failed_ = true;
  late_.clear();
}

bool Responder::flush(std::uint16_t receives) {
  // Those of a queue that goes on elsewhere are for the next NIC.
  if (setup_.records != nullptr || setup_.memory.receive_count == 0 || !items_.empty()) {
    return false;
  }
  bool any = false;
  for (std::uint32_t i = 0; i < kReceivesFlushedMost; ++i) {
    const auto index = static_cast<std::uint16_t>(record_.received);
    if (index == receives) break;
    completions_.write({.kind = CompletionRecord::Kind::response_error,
                        .queue = number_,
                        .index = index,
                        .syndrome = Syndrome::flushed});
    ++record_.received;
    any = true;
  }
  return any;
}

void Responder::end() {
  late_.clear();
  // What has landed by now has been done, though nobody was told: whoever has seen it may have
  // changed it since. What a GPU has begun and will never end is refused, here too: of an atomic
  // the record says that it was done.
  for (; begun_ > 0 && finish(items_.front(), nic_.clock->now()); --begun_) items_.pop_front();
  failed_ = true;
  items_.clear();
  begun_ = 0;
  outgoing_.clear();
}

bool Responder::is_lost() {
  ++answers_;
  return std::any_of(nic_.faults.lost_responses.begin(), nic_.faults.lost_responses.end(),
                     [&](const NicFaults::LoseResponse& fault) {
                       return (fault.queue == 0 || fault.queue == number_) &&
                              answers_ >= fault.nth && answers_ - fault.nth < fault.count;
                     });
}

void Responder::answer(WireResponse response, TimePoint due, bool is_done_write) {
  // One that leaves has given its keys back: not the peer's fault.
  if (response.syndrome != Syndrome::none && nic_.takes_nothing) return;
  if (is_lost()) return;
  // Sent in the order of execution, as a reliable connection delivers: the first holds up the rest.
  Outgoing out{std::move(response), due, is_done_write};
  despite_short_memory([&] { outgoing_.push_back(std::move(out)); });
}

/// An answer says of all writes before it that they have been done.
bool Responder::is_said_by_next(TimePoint now) const {
  if (!outgoing_.front().is_done_write || outgoing_.size() < 2) return false;
  const Outgoing& next = outgoing_[1];
  const WireResponse& response = next.response;
  return next.due <= now && response.number > outgoing_.front().response.number &&
         response.syndrome == Syndrome::none && !response.not_ready && !response.not_mapped;
}

bool Responder::progress(TimePoint now) {
  bool any = advance(now);
  while (!late_.empty() && late_.front().due <= now) {
    WireRequest request = std::move(late_.front().request);
    late_.pop_front();
    const Syndrome syndrome = check(request);  // the key may have been given back
    if (syndrome != Syndrome::none) {
      refuse(request, syndrome, now);
    } else {
      execute(request, now);
    }
    any = true;
  }
  while (!outgoing_.empty() && outgoing_.front().due <= now) {
    if (is_said_by_next(now)) {
      outgoing_.pop_front();
      continue;
    }
    WireMessage message{std::move(outgoing_.front().response)};
    if (!nic_.wires[peer_.wire]->send(peer_.address, message)) {
      outgoing_.front().response = std::move(std::get<WireResponse>(message.body));
      break;
    }
    outgoing_.pop_front();
    any = true;
  }
  return any;
}

}  // namespace oriel::net
