// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/responder.hpp"

#include <algorithm>
#include <utility>

#include "net/host_memory.hpp"
#include "net/queue_records.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kAnswersMost = 1024;  // that wait for their time, or for the wire

Access right_for(WorkKind kind) {
  if (kind == WorkKind::write) return kRemoteWrite;
  return kind == WorkKind::read ? kRemoteRead : kRemoteAtomic;
}

// Whether the fields agree with each other; a wire brings whatever its other end says.
bool is_sound(const WireRequest& request) {
  switch (request.kind) {
    case WorkKind::write:
      if (request.payload.size() != request.piece_bytes) return false;
      break;
    case WorkKind::read:
      if (!request.payload.empty()) return false;
      break;
    case WorkKind::atomic:
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
  if (outgoing_.size() + late_.size() >= kAnswersMost) return;
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
  if (request.has_immediate && request.kind == WorkKind::write &&
      receives == static_cast<std::uint16_t>(record_.received)) {
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
    late_.push_back(
        {std::move(request), now + (put_off ? nic_.faults.reads_behind_writes : Duration::zero())});
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

void Responder::execute(WireRequest& request, TimePoint now) {
  std::byte* at = nic_.keys
                      .find_remote(setup_.domain, request.key, request.address, request.bytes,
                                   right_for(request.kind))
                      .memory;
  WireResponse response = response_to(request);
  TimePoint due = now;
  if (request.kind != WorkKind::write) due += nic_.faults.response_delay;
  if (request.kind == WorkKind::write) {
    if (at != nullptr) store_bytes(at + request.offset, request.payload);
    if (request.has_immediate) {
      completions_.write({.kind = CompletionRecord::Kind::received_immediate,
                          .queue = number_,
                          .index = static_cast<std::uint16_t>(record_.received),
                          .bytes = static_cast<std::uint32_t>(request.bytes),
                          .immediate = request.immediate});
      ++record_.received;
    }
  } else if (request.kind == WorkKind::read) {
    response.payload.resize(request.piece_bytes);
    if (at != nullptr)
      load_bytes(at + request.offset, response.payload.data(), request.piece_bytes);
  } else {
    // Mapped elsewhere, what is aligned in the peer's eyes need not be so here.
    if (reinterpret_cast<std::uintptr_t>(at) % request.atomic.bytes != 0) {
      return refuse(request, Syndrome::remote_operation, now);
    }
    response.old_value = execute_atomic(request.atomic, at);
    record_.executed(request.number, response.old_value);
  }
  if (request.kind != WorkKind::atomic) record_.executed(request.number);
  answer(std::move(response), due);
}

void Responder::answer_again(WireRequest& request, TimePoint now) {
  const auto is_same = [&](const auto& late) { return late.request.number == request.number; };
  if (std::any_of(late_.begin(), late_.end(), is_same)) return;  // its answer is still to come
  const auto goes_out = [&](const Outgoing& out) { return out.response.number == request.number; };
  if (std::any_of(outgoing_.begin(), outgoing_.end(), goes_out)) return;
  WireResponse response = response_to(request);
  const bool owed = record_.is_owed(request.number);
  if (request.kind == WorkKind::write && !owed) return answer(std::move(response), now);
  const Syndrome syndrome = check(request);
  if (syndrome != Syndrome::none) return refuse(request, syndrome, now);
  if (request.kind == WorkKind::read || owed) return execute(request, now);
  const std::optional<std::uint64_t> kept = record_.old_value(request.number);
  if (!kept.has_value()) return refuse(request, Syndrome::remote_invalid, now);
  response.old_value = *kept;
  answer(std::move(response), now);
}

void Responder::refuse(const WireRequest& request, Syndrome syndrome, TimePoint now) {
  WireResponse response = response_to(request);
  response.syndrome = syndrome;
  if (setup_.records != nullptr && !failed_) setup_.records->refused = syndrome;
  failed_ = true;
  late_.clear();
  answer(std::move(response), now);
}

bool Responder::is_lost() {
  ++answers_;
  return std::any_of(nic_.faults.lost_responses.begin(), nic_.faults.lost_responses.end(),
                     [&](const NicFaults::LoseResponse& fault) {
                       return (fault.queue == 0 || fault.queue == number_) &&
                              answers_ >= fault.nth && answers_ - fault.nth < fault.count;
                     });
}

void Responder::answer(WireResponse response, TimePoint due) {
  if (is_lost()) return;
  // Sent in the order of execution, as a reliable connection delivers: the first holds up the rest.
  outgoing_.push_back({std::move(response), due});
}

bool Responder::progress(TimePoint now) {
  bool any = false;
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
