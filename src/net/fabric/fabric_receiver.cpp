// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_receiver.hpp"

#include <algorithm>
#include <utility>

#include "oriel/device/memory.hpp"

#include "base/try.hpp"

namespace oriel::net::fabric {
namespace {

Error no_payload() {
  return Error(ErrorCode::remote, "a message of a NIC has its payload in no frame");
}

/// Decodes a message whose payload follows the batch.
Result<WireMessage> join(ByteView head, ByteView payload) {
  ORIEL_TRY(WireHead read, decode_head(head, head.size() + payload.size()));
  if (payload.empty() || read.payload_bytes != payload.size()) return no_payload();
  payload_of(read.message) = Bytes(payload.begin(), payload.end());
  return std::move(read.message);
}

// Returns whether the message names its sender as its origin, and a queue that is for that sender.
bool is_allowed(const Peer& sender, const WireMessage& message) {
  const auto* const request = std::get_if<WireRequest>(&message.body);
  if (request != nullptr && !(request->from == sender.address)) return false;
  const std::uint32_t queue =
      request != nullptr ? request->to_queue : std::get<WireResponse>(message.body).to_queue;
  return sender.queues.empty() ||
         std::find(sender.queues.begin(), sender.queues.end(), queue) != sender.queues.end();
}

}  // namespace

Status Receiver::open(std::size_t buffer_bytes) {
  buffer_bytes_ = buffer_bytes;
  buffers_.resize(end_.options.receives);
  const std::size_t bytes = buffers_.size() * buffer_bytes;
  memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  for (std::uint32_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].operation.index = i;
    buffers_[i].memory = memory_.get() + i * buffer_bytes;
  }
  unposted_.reserve(buffers_.size());
  if (!end_.endpoint->needs_memory()) return {};
  ORIEL_TRY(descriptor_, end_.endpoint->register_memory(memory_.get(), bytes));
  return {};
}

void Receiver::post_free() {
  std::vector<bool> is_free(buffers_.size(), true);
  for (const Arrived& one : arrived_) is_free[one.buffer] = false;
  end_.peers.for_each([&](const Peer& peer) {
    for (const auto& [sequence, one] : peer.incoming.early) is_free[one.buffer] = false;
  });
  posted_ = 0;
  unposted_.clear();
  for (std::uint32_t i = 0; i < buffers_.size(); ++i) {
    if (is_free[i]) post(i);
  }
}

bool Receiver::post(std::uint32_t buffer) {
  Buffer& receive = buffers_[buffer];
  const ssize_t status =
      end_.table.fi_recv(end_.endpoint->endpoint(), receive.memory, buffer_bytes_, descriptor_,
                         FI_ADDR_UNSPEC, &receive.operation.context);
  if (status == 0) {
    ++posted_;
    return true;
  }
  if (status != -FI_EAGAIN) end_.note(fabric_error(end_.table, "fi_recv", status));
  unposted_.push_back(buffer);
  return false;
}

void Receiver::post_again() {
  for (std::size_t i = unposted_.size(); i > 0; --i) {
    const std::uint32_t buffer = unposted_.back();
    unposted_.pop_back();
    if (!post(buffer)) return;
  }
}

void Receiver::fail(std::uint32_t buffer, int error, Error failed) {
  --posted_;
  // FI_ETRUNC: the frame is longer than any of ours, so no peer has sent it.
  if (error != FI_ETRUNC) end_.note(std::move(failed));
  post(buffer);
}

void Receiver::complete(std::uint32_t buffer, std::size_t bytes) {
  --posted_;
  const ByteView frame(buffers_[buffer].memory, std::min(bytes, buffer_bytes_));
  const auto head = read_frame(frame);
  Peer* const peer = head.has_value() ? end_.peers.find({head->from}) : nullptr;
  if (peer == nullptr || peer->is_cut ||
      !is_authenticated(peer->incoming.keys, frame, *head, peer->authenticate_payloads)) {
    post(buffer);
    return;
  }
  peer->error.reset();
  peer->sign.last_received = end_.now();
  // Acknowledgements carry 32 bits: they mean the latest frame sent whose number matches.
  const std::uint64_t sent = peer->outgoing.next;
  const std::uint32_t behind = static_cast<std::uint32_t>(sent) - head->accepted;
  if (behind <= sent) peer->sign.arrived = std::max(peer->sign.arrived, sent - behind);
  accept(*peer, buffer, *head);
}

void Receiver::accept(Peer& peer, std::uint32_t buffer, const FrameHead& head) {
  Peer::Incoming& incoming = peer.incoming;
  if (head.sequence < incoming.next || incoming.early.contains(head.sequence)) {
    post(buffer);
    return;
  }
  if (head.sequence > incoming.next) {
    if (incoming.early.empty()) {
      incoming.waiting_since = end_.now();
      ++waiting_peers_;
    }
    incoming.early.emplace(head.sequence, Peer::Incoming::Early{buffer, head});
    return;
  }
  arrived_.push_back({&peer, buffer, head});
  ++incoming.next;
  if (incoming.early.empty()) return;
  // Restarts the timeout: several long frames may be missing, which come one after the other.
  incoming.waiting_since = peer.sign.last_received;
  take_early(peer);
}

void Receiver::take_early(Peer& peer) {
  Peer::Incoming& incoming = peer.incoming;
  bool any = false;
  while (!incoming.early.empty() && incoming.early.begin()->first == incoming.next) {
    const Peer::Incoming::Early& next = incoming.early.begin()->second;
    arrived_.push_back({&peer, next.buffer, next.head});
    incoming.early.erase(incoming.early.begin());
    ++incoming.next;
    any = true;
  }
  if (incoming.early.empty()) {
    --waiting_peers_;
  } else if (any) {
    incoming.waiting_since = end_.now();
  }
}

void Receiver::give_up_missing() {
  if (waiting_peers_ == 0) return;
  const TimePoint now = end_.now();
  // Buffers are matched in the order of sending. So if no buffer is posted, no frame can come that
  // was sent before those that are here.
  const bool none_can_come = posted_ == 0 && arrived_.empty() && unposted_.empty();
  end_.peers.for_each([&](Peer& peer) {
    Peer::Incoming& incoming = peer.incoming;
    if (incoming.early.empty()) return;
    if (!none_can_come && now - incoming.waiting_since < end_.options.timeout) return;
    incoming.next = incoming.early.begin()->first;
    take_early(peer);
  });
}

bool Receiver::take(WireMessage& message) {
  while (!arrived_.empty()) {
    Arrived& next = arrived_.front();
    const Peer& sender = *next.peer;
    Result<WireMessage> decoded = read(next);
    if (next.taken == next.head.batch_bytes) {
      const std::uint32_t buffer = next.buffer;
      arrived_.pop_front();
      post(buffer);
    }
    if (!decoded.ok() || !is_allowed(sender, decoded.value())) continue;
    device::arch::annotate_happens_after();
    message = std::move(decoded).value();
    return true;
  }
  return false;
}

Result<WireMessage> Receiver::read(Arrived& from) {
  const ByteView bytes(buffers_[from.buffer].memory + kFrameHeadBytes,
                       from.head.batch_bytes + from.head.payload_bytes);
  const ByteView batch = bytes.first(from.head.batch_bytes);
  const ByteView payload = bytes.subspan(from.head.batch_bytes);
  ByteView left = batch.subspan(from.taken);
  const BatchMessage next = next_of_batch(left);
  Result<WireMessage> message = !next.has_payload_behind ? decode_message(next.bytes)
                                : from.has_payload       ? join(next.bytes, payload)
                                                         : no_payload();
  if (next.has_payload_behind) from.has_payload = false;
  // After a malformed message, skips the rest of the batch.
  from.taken = message.ok() && !is_at_end(left) ? batch.size() - left.size() : batch.size();
  return message;
}

void Receiver::forget(Peer& peer) {
  std::erase_if(arrived_, [&](const Arrived& one) { return one.peer == &peer; });
  if (!peer.incoming.early.empty()) --waiting_peers_;
  peer.incoming.early.clear();
}

}  // namespace oriel::net::fabric
