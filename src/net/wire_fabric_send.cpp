// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
#include <sys/uio.h>

#include "net/wire_fabric_state.hpp"

// The sending half of a fabric wire.
namespace oriel::net {

using namespace fabric;

bool WireFabric::State::send(Peer& peer, WireMessage& message) {
  const std::size_t payload_bytes = payload_of(message).size();
  if (payload_bytes > peer.payload_bytes_most || payload_bytes > options.payload_bytes_most) {
    lose(peer, Error(ErrorCode::invalid_argument,
                     fmt::format("a message has {} bytes; there is room for {}", payload_bytes,
                                 std::min(peer.payload_bytes_most, options.payload_bytes_most))));
    return true;
  }
  return payload_bytes <= kSmallBytesMost ? send_small(peer, message) : send_large(peer, message);
}

Send& WireFabric::State::take_slot(Peer& peer) {
  Send& slot = sends[free.back()];
  free.pop_back();
  slot.peer = &peer;
  ++peer.on_the_way;
  return slot;
}

bool WireFabric::State::send_small(Peer& peer, const WireMessage& message) {
  const Bytes bytes = encode_message(message);
  const std::size_t needed = sizeof(std::uint32_t) + bytes.size();
  if (peer.batch != nullptr && peer.batch->batch_bytes + needed > kBatchBytesMost &&
      !send_batch(peer)) {
    return wait_for_room(peer);
  }
  if (peer.batch == nullptr) {
    if (!has_room(peer)) poll();
    if (!has_room(peer)) return wait_for_room(peer);
    peer.batch = &take_slot(peer);
    peer.batch->messages = 0;
    with_batch.push_back(&peer);
  }
  Send& batch = *peer.batch;
  std::byte* const at = batch.heads + kFrameHeadBytes + batch.batch_bytes;
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::memcpy(at, &length, sizeof length);
  std::copy(bytes.begin(), bytes.end(), at + sizeof length);
  batch.batch_bytes += needed;
  ++batch.messages;
  ++counters.sent;
  return true;
}

// False while libfabric has no room for it.
bool WireFabric::State::send_batch(Peer& peer) {
  Send& batch = *peer.batch;
  seal_batch(peer.outgoing, own.id, peer.next_out, batch.heads, batch.batch_bytes);
  const ssize_t status = post_send(peer, batch, kFrameHeadBytes + batch.batch_bytes, {});
  if (status == -FI_EAGAIN && !is_blocked_for_long(peer)) return false;
  peer.batch = nullptr;
  std::erase(with_batch, &peer);
  if (status == 0) {
    ++peer.next_out;
    peer.blocked_since.reset();
    return true;
  }
  if (status != -FI_EAGAIN) {
    lose(peer, fabric_error(table, "fi_sendmsg", status), batch.messages);
  } else {
    counters.lost += batch.messages;
  }
  complete_send(batch);
  return true;
}

void WireFabric::State::send_batches() {
  for (std::size_t i = with_batch.size(); i > 0; --i) send_batch(*with_batch[i - 1]);
}

bool WireFabric::State::send_large(Peer& peer, WireMessage& message) {
  // What was sent before it goes first.
  if (peer.batch != nullptr && !send_batch(peer)) {
    poll();
    return wait_for_room(peer);
  }
  if (!has_room(peer)) poll();
  if (!has_room(peer)) return wait_for_room(peer);
  // What is sent from where it lies has to stay there, and what is proven must not change.
  if (!copies_payloads || peer.prove_payloads) payload_of(message).own();
  const ByteView payload = payload_of(message).joined();
  Send& slot = sends[free.back()];
  const std::size_t heads = seal_frame(peer.outgoing, own.id, peer.next_out, encode_head(message),
                                       payload, peer.prove_payloads, slot.heads);
  const ssize_t status = post_send(peer, slot, heads, payload);
  if (status == -FI_EAGAIN) {
    poll();
    return wait_for_room(peer);
  }
  if (status != 0) {
    lose(peer, fabric_error(table, "fi_sendmsg", status));
    return true;
  }
  Send& sent = take_slot(peer);
  if (!copies_payloads) sent.payload = payload_of(message).take();  // it stays where it is
  ++peer.next_out;
  peer.blocked_since.reset();
  ++counters.sent;
  return true;
}

ssize_t WireFabric::State::post_send(Peer& peer, Send& slot, std::size_t heads, ByteView payload) {
  std::array<iovec, 2> parts{};
  std::array<void*, 2> descriptors = {slot.descriptor, nullptr};
  parts[0] = {slot.heads, heads};
  fi_msg message{};
  message.msg_iov = parts.data();
  message.desc = descriptors.data();
  message.iov_count = 1;
  message.addr = peer.where;
  message.context = &slot.operation.context;
  if (copies_payloads || payload.empty()) {
    if (!payload.empty()) std::memcpy(slot.heads + heads, payload.data(), payload.size());
    parts[0].iov_len += payload.size();
  } else {
    parts[1] = {const_cast<std::byte*>(payload.data()), payload.size()};
    message.iov_count = 2;
  }
  return table.fi_sendmsg(endpoint->endpoint(), &message, FI_COMPLETION);
}

bool WireFabric::State::wait_for_room(Peer& peer) {
  ++counters.busy;
  if (!is_blocked_for_long(peer)) return false;
  ++counters.lost;
  return true;
}

bool WireFabric::State::is_blocked_for_long(Peer& peer) {
  const TimePoint now = options.clock->now();
  if (!peer.blocked_since.has_value()) peer.blocked_since = now;
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(now - *peer.blocked_since);
  if (waited < options.patience) return false;
  lose(peer,
       Error(ErrorCode::timeout, fmt::format("nothing has been taken for {} ms", waited.count())),
       0);
  return true;
}

void WireFabric::State::lose(Peer& peer, Error failed, std::uint64_t messages) {
  counters.lost += messages;
  peer.error = std::move(failed).with_context(fmt::format("sending to {}", peer.name));
}

}  // namespace oriel::net
