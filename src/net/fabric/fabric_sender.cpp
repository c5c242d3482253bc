// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_sender.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/uio.h>

#include "oriel/device/memory.hpp"

#include "base/try.hpp"

namespace oriel::net::fabric {
namespace {

/// Largest payload that is copied into the batch and covered by its hash. A longer one follows the
/// batch.
constexpr std::size_t kSmallBytesMost = 328;
/// Room that a batch keeps for later messages when a payload is copied behind it: a word or two,
/// and an answer.
constexpr std::size_t kBatchBytesBehind = 256;

}  // namespace

Status Sender::open(const SendLayout& layout) {
  layout_ = layout;
  if (!layout_.copies_payloads && layout_.padding.bytes != 0) {
    zeros_ = std::make_unique<std::byte[]>(layout_.padding.bytes);
  }
  sends_.resize(end_.options.sends);
  memory_ = std::make_unique_for_overwrite<std::byte[]>(sends_.size() * layout_.buffer_bytes);
  for (std::uint32_t i = 0; i < sends_.size(); ++i) {
    sends_[i].operation.kind = Operation::Kind::send;
    sends_[i].operation.index = i;
    sends_[i].heads = memory_.get() + i * layout_.buffer_bytes;
    free_.push_back(i);
  }
  if (!end_.endpoint->needs_memory()) return {};
  // Registers each buffer as its own region. If regions are addressed from 0, rxm has the peer read
  // a long message from its region's start, wherever the message lies.
  for (Send& send : sends_) {
    ORIEL_TRY(send.descriptor, end_.endpoint->register_memory(send.heads, layout_.buffer_bytes));
  }
  return {};
}

bool Sender::send(Peer& peer, WireMessage& message) {
  const std::size_t payload_bytes = payload_of(message).size();
  if (payload_bytes > peer.payload_bytes_most || payload_bytes > end_.options.payload_bytes_most) {
    lose(
        peer,
        Error(ErrorCode::invalid_argument,
              fmt::format("a message to {} has {} bytes; the limit is {}", peer.name, payload_bytes,
                          std::min(peer.payload_bytes_most, end_.options.payload_bytes_most)))
            .with_hint(
                "send shorter messages, or give both ends a larger Options::payload_bytes_most"));
    return true;
  }
  const bool is_behind = payload_bytes > kSmallBytesMost;
  const Bytes bytes = is_behind ? encode_head(message) : encode_message(message);
  if (!open_batch(peer, sizeof(std::uint32_t) + bytes.size(), is_behind)) return false;
  if (is_behind && !layout_.copies_payloads) payload_of(message).own();
  Send& batch = *peer.outgoing.batch;
  std::byte* const at = batch.heads + kFrameHeadBytes + batch.batch_bytes;
  const auto length = static_cast<std::uint32_t>(bytes.size()) | (is_behind ? kPayloadBehind : 0);
  std::memcpy(at, &length, sizeof length);
  std::copy(bytes.begin(), bytes.end(), at + sizeof length);
  batch.batch_bytes += sizeof length + bytes.size();
  if (is_behind) put_behind(batch, payload_of(message));
  device::arch::annotate_happens_before();
  message.place = peer.outgoing.next + 1;
  return true;
}

bool Sender::has_free_slot(const Peer& peer) const {
  return !free_.empty() && peer.outgoing.under_way < std::max<std::size_t>(2, free_.size());
}

Send& Sender::take_slot(Peer& peer) {
  Send& slot = sends_[free_.back()];
  free_.pop_back();
  slot.peer = &peer;
  ++peer.outgoing.under_way;
  return slot;
}

/// Ensures that the peer's batch has space for `bytes` bytes, and for a payload behind it. Sends a
/// full batch and opens another. Returns false if there is no space now.
bool Sender::open_batch(Peer& peer, std::size_t bytes, bool has_payload) {
  if (peer.outgoing.batch != nullptr) {
    const Send& batch = *peer.outgoing.batch;
    const bool is_full =
        batch.batch_bytes + bytes > batch.batch_limit || (has_payload && batch.payload_bytes != 0);
    if (!is_full) return true;
    if (!send_batch(peer)) return false;
  }
  if (!has_free_slot(peer)) return false;
  peer.outgoing.batch = &take_slot(peer);
  peer.outgoing.batch->batch_limit = kBatchBytesMost;
  with_batch_.push_back(&peer);
  return true;
}

void Sender::put_behind(Send& batch, Payload& payload) {
  batch.payload_bytes = payload.size();
  if (!layout_.copies_payloads) {
    // Takes ownership: a payload that is not copied must stay valid until it is sent.
    batch.payload = payload.take();
    return;
  }
  batch.batch_limit = std::min(batch.batch_bytes + kBatchBytesBehind, kBatchBytesMost);
  std::byte* to = batch.heads + kFrameHeadBytes + batch.batch_limit;
  for (const ByteView part : payload.parts()) to = std::copy(part.begin(), part.end(), to);
}

// Sends the peer's batch. Returns false while libfabric has no room for it.
bool Sender::send_batch(Peer& peer) {
  Send& batch = *peer.outgoing.batch;
  const ssize_t status = post(peer, batch);
  if (status == -FI_EAGAIN && !give_up(peer)) return false;
  peer.outgoing.batch = nullptr;
  std::erase(with_batch_, &peer);
  if (status == 0) {
    ++peer.outgoing.next;
    peer.outgoing.blocked_since.reset();
    return true;
  }
  if (status != -FI_EAGAIN) lose(peer, fabric_error(end_.table, "fi_sendmsg", status));
  free_slot(batch);
  return true;
}

void Sender::send_batches() {
  for (std::size_t i = with_batch_.size(); i > 0; --i) send_batch(*with_batch_[i - 1]);
}

ssize_t Sender::post(Peer& peer, Send& batch) {
  std::byte* const body = batch.heads + kFrameHeadBytes;
  const bool is_copied = layout_.copies_payloads && batch.payload_bytes != 0;
  const std::size_t bytes = is_copied ? batch.batch_limit : batch.batch_bytes;
  std::fill(body + batch.batch_bytes, body + bytes, std::byte{});
  const ByteView payload = is_copied ? ByteView(body + bytes, batch.payload_bytes) : batch.payload;
  FrameHead head{end_.own.id, peer.outgoing.next, static_cast<std::uint16_t>(bytes)};
  head.accepted = static_cast<std::uint32_t>(peer.incoming.next);
  head.padding_bytes = layout_.padding.of(kFrameHeadBytes + bytes + payload.size());
  seal_frame(peer.outgoing.keys, head, batch.heads, payload, peer.authenticate_payloads);
  std::array<iovec, 3> parts{};
  std::array<void*, 3> descriptors = {batch.descriptor, nullptr, nullptr};
  parts[0] = {batch.heads, kFrameHeadBytes + bytes};
  if (is_copied) {
    std::fill_n(body + bytes + batch.payload_bytes, head.padding_bytes, std::byte{});
    parts[0].iov_len += batch.payload_bytes + head.padding_bytes;
  }
  parts[1] = {batch.payload.data(), batch.payload.size()};
  parts[2] = {zeros_.get(), head.padding_bytes};
  fi_msg message{};
  message.msg_iov = parts.data();
  message.desc = descriptors.data();
  message.iov_count = batch.payload.empty() ? 1 : head.padding_bytes == 0 ? 2 : 3;
  message.addr = peer.where;
  message.context = &batch.operation.context;
  return end_.table.fi_sendmsg(end_.endpoint->endpoint(), &message, FI_COMPLETION);
}

void Sender::complete(std::uint32_t index) {
  Send& send = sends_[index];
  if (send.peer != nullptr) send.peer->outgoing.blocked_since.reset();
  free_slot(send);
}

void Sender::fail(std::uint32_t index, Error failed) {
  Send& send = sends_[index];
  if (send.peer != nullptr) lose(*send.peer, std::move(failed));
  free_slot(send);
}

void Sender::free_slot(Send& send) {
  if (send.peer == nullptr) return;  // the send has already completed
  --send.peer->outgoing.under_way;
  send.peer = nullptr;
  send.payload = Bytes();
  send.payload_bytes = 0;
  send.batch_bytes = 0;
  free_.push_back(send.operation.index);
}

void Sender::forget() {
  for (Send& send : sends_) {
    Peer* const peer = send.peer;
    if (peer == nullptr) continue;
    const bool waits = peer->outgoing.batch == &send;
    if (waits && !peer->is_cut) continue;
    if (waits) {
      peer->outgoing.batch = nullptr;
      std::erase(with_batch_, peer);
    }
    free_slot(send);
  }
  end_.peers.for_each([](Peer& peer) { peer.outgoing.blocked_since.reset(); });
}

bool Sender::give_up(Peer& peer) {
  const TimePoint now = end_.now();
  if (!peer.outgoing.blocked_since.has_value()) peer.outgoing.blocked_since = now;
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(now - *peer.outgoing.blocked_since);
  if (waited < end_.options.timeout) return false;
  lose(peer,
       Error(ErrorCode::timeout, fmt::format("nothing has been taken for {} ms", waited.count())));
  return true;
}

void Sender::lose(Peer& peer, Error failed) {
  peer.error = std::move(failed).with_context(fmt::format("sending to {}", peer.name));
}

}  // namespace oriel::net::fabric
