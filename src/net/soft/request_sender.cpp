// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/request_sender.hpp"

#include <algorithm>
#include <utility>

#include "net/queue/queue_records.hpp"

namespace oriel::net {
namespace {

bool needs_load(const PostedWqe& wqe, const SentRequest& request) {
  return wqe.work.kind == WorkKind::write && !wqe.work.is_inline && !request.is_zero_copy();
}

}  // namespace

bool RequestSender::send_again(TimePoint now) {
  held_up_ = false;
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    if (sent_[i].on_wire || sent_[i].answered) continue;
    if (!send(sent_[i], now)) return false;
  }
  return true;
}

bool RequestSender::send_pieces(PostedWqe& wqe, TimePoint now) {
  while (wqe.sent < wqe.pieces && !wqe.done) {
    if (sent_.is_full()) return false;
    SentRequest request;
    request.serial = wqe.serial;
    request.offset = wqe.sent_bytes;
    request.bytes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(wqe.piece_bytes, wqe.work.bytes - request.offset));
    if (wqe.rendezvous && !zero_copy_.expose(wqe, request)) {
      cut_for_wire(wqe);
      continue;
    }
    request.direct = wqe.direct;
    request.last = wqe.sent + 1 == wqe.pieces;
    const bool has_bytes = !request.is_zero_copy() && wqe.work.kind != WorkKind::atomic;
    request.wire_bytes = has_bytes ? request.bytes : 0;
    SentRequest* const added = sent_.add(std::move(request));
    if (added == nullptr) return false;
    ++wqe.sent;
    wqe.sent_bytes += added->bytes;
    if (!send(*added, now)) return false;
  }
  return wqe.sent == wqe.pieces;
}

void RequestSender::go_by_wire(std::size_t position) {
  const SentRequest& refused = sent_[position];
  PostedWqe& wqe = posted_.of(refused.serial);
  if (!refused.is_zero_copy() || wqe.work.kind != WorkKind::write) return;
  for (std::size_t i = position; i < sent_.size(); ++i) {
    if (sent_[i].answered) return posted_.stop_at(wqe, Syndrome::remote_operation);
  }
  zero_copy_.note_refusal(wqe, refused);
  posted_.send_again_from(wqe.serial);
  while (sent_.size() > position) {
    SentRequest& newest = sent_.newest();
    PostedWqe& its = posted_.of(newest.serial);
    zero_copy_.revoke(its, newest);
    --its.sent;
    its.sent_bytes -= newest.bytes;
    sent_.drop_newest();
  }
  // The peer has not accepted these numbers from another NIC either.
  if (end_.setup.records != nullptr) end_.setup.records->sent = sent_.next_number();
  posted_.for_each_sending([this](PostedWqe& one) {
    if (zero_copy_.is_refused(one)) cut_for_wire(one);
  });
}

void RequestSender::cut_for_wire(PostedWqe& wqe) {
  wqe.direct = false;
  wqe.rendezvous = false;
  wqe.cut(end_.setup.piece_bytes);
}

void RequestSender::forget_sent() {
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    zero_copy_.lose(posted_.of(sent_[i].serial), sent_[i]);
  }
  sent_.forget();
}

void RequestSender::forget_unsent() {
  while (!sent_.empty() && !sent_.newest().was_sent) {
    SentRequest& newest = sent_.newest();
    zero_copy_.revoke(posted_.of(newest.serial), newest);
    sent_.drop_newest();
  }
}

bool RequestSender::send(SentRequest& request, TimePoint now) {
  PostedWqe& wqe = posted_.of(request.serial);
  if (held_up_) {
    load_ahead(wqe, request);
    return true;
  }
  const Step step = transmit(wqe, request, now);
  held_up_ = step == Step::loading;
  return step != Step::blocked;
}

/// Continues to load the payload from where it is registered.
RequestSender::Step RequestSender::load(PostedWqe& wqe, SentRequest& request) {
  // Looked up again: the key may have been deregistered since the WQE started.
  const auto found = end_.find_local(wqe.work, false);
  if (found.syndrome != Syndrome::none) {
    posted_.stop_at(wqe, found.syndrome);
    return Step::blocked;
  }
  CopyEngine& engine = end_.nic.engine(found.place);
  if (engine.has_failed()) {
    posted_.stop_at(wqe, Syndrome::local_operation, Complaint::no_copies);
    return Step::blocked;
  }
  // Host memory is sent from its current address, so its load starts anew.
  if (!request.load.has_value() || found.place == MemoryPlace::host) {
    request.load.emplace(request.bytes, true);
  }
  static_cast<void>(request.load->begin(engine, found.memory + request.offset));
  request.loaded = request.load->take(engine);
  return request.loaded ? Step::sent : Step::loading;
}

void RequestSender::load_ahead(PostedWqe& wqe, SentRequest& request) {
  if (!needs_load(wqe, request) || request.loaded || wqe.done) return;
  if (zero_copy_.asks_only(wqe, request)) return;
  static_cast<void>(load(wqe, request));
}

/// Builds the request without the bytes of a write that have to be loaded first.
WireRequest RequestSender::request_for(const PostedWqe& wqe, const SentRequest& sent) const {
  const WorkRequest& work = wqe.work;
  WireRequest request;
  request.from = end_.wire().address();
  request.from_queue = end_.number;
  request.to_queue = end_.peer.queue;
  request.epoch = end_.peer.epoch;
  request.number = sent.number;
  request.kind = work.kind;
  request.key = work.rkey;
  request.address = work.remote_address;
  request.bytes = work.bytes;
  request.offset = sent.offset;
  request.piece_bytes = sent.bytes;
  request.has_immediate = work.has_immediate && sent.last;
  request.immediate = work.immediate;
  request.atomic = work.atomic;
  request.direct = sent.direct;
  request.source = sent.source;
  if (sent.direct && wqe.direct) {  // else it only asks, with key 0, which is never valid
    request.source_key = work.lkey;
    request.source_address = work.local_address + sent.offset;
  } else if (work.is_inline) {
    request.payload = Payload::borrow(ByteView(work.inline_bytes).subspan(sent.offset, sent.bytes));
  }
  return request;
}

RequestSender::Step RequestSender::transmit(PostedWqe& wqe, SentRequest& request, TimePoint now) {
  if (zero_copy_.asks_only(wqe, request)) {
    request.direct = true;
    request.load.reset();
    request.loaded = false;
  }
  WireMessage message{request_for(wqe, request)};
  if (needs_load(wqe, request)) {
    const Step step = load(wqe, request);
    if (step != Step::sent) return step;
    std::get<WireRequest>(message.body).payload = request.load->expose();
  }
  request.on_wire = end_.wire().send(end_.peer.address, message);
  // While the wire has no room, the timeout runs from the first attempt. A peer that does not drain
  // a full ring is as silent as a dead one.
  if (request.on_wire || request.at == TimePoint{}) request.at = now;
  if (request.on_wire) {
    request.place = message.place;
    note_sent(request);
    return Step::sent;
  }
  // If the wire copied the bytes before it found no room, the copy is kept.
  Payload& payload = std::get<WireRequest>(message.body).payload;
  if (request.loaded && !payload.is_borrowed()) request.load.emplace(payload.take());
  return Step::blocked;
}

void RequestSender::note_sent(SentRequest& request) {
  request.was_sent = true;
  request.load.reset();  // a retransmission reads the memory again
  request.loaded = false;
  if (end_.setup.records != nullptr) {
    end_.setup.records->sent = std::max(end_.setup.records->sent, request.number + 1);
  }
}

}  // namespace oriel::net
