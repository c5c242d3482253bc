// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
#include <sys/uio.h>

#include "oriel/device/memory.hpp"

#include "base/short_memory.hpp"
#include "net/fabric/wire_fabric_state.hpp"

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
  const bool is_behind = payload_bytes > kSmallBytesMost;
  const Bytes bytes = despite_short_memory(
      [&] { return is_behind ? encode_head(message) : encode_message(message); });
  if (!make_room(peer, sizeof(std::uint32_t) + bytes.size(), is_behind)) return wait_for_room(peer);
  if (is_behind && !copies_payloads) despite_short_memory([&] { payload_of(message).own(); });
  Send& batch = *peer.batch;
  std::byte* const at = batch.heads + kFrameHeadBytes + batch.batch_bytes;
  const auto length = static_cast<std::uint32_t>(bytes.size()) | (is_behind ? kPayloadBehind : 0);
  std::memcpy(at, &length, sizeof length);
  std::copy(bytes.begin(), bytes.end(), at + sizeof length);
  batch.batch_bytes += sizeof length + bytes.size();
  if (is_behind) put_behind(batch, payload_of(message));
  device::arch::order_goes_abroad();
  ++batch.messages;
  ++counters.sent;
  message.place = peer.next_out + 1;
  return true;
}

Send& WireFabric::State::take_slot(Peer& peer) {
  Send& slot = sends[free.back()];
  free.pop_back();
  slot.peer = &peer;
  ++peer.on_the_way;
  return slot;
}

/// For so many bytes in the peer's batch, and for a payload behind it: in the one that there is, or
/// in another one behind it.
bool WireFabric::State::make_room(Peer& peer, std::size_t bytes, bool has_payload) {
  if (peer.batch != nullptr) {
    const Send& batch = *peer.batch;
    const bool is_full =
        batch.batch_bytes + bytes > batch.batch_limit || (has_payload && batch.payload_bytes != 0);
    if (!is_full) return true;
    if (!send_batch(peer)) {
      poll();
      return false;
    }
  }
  if (!has_room(peer)) poll();
  if (!has_room(peer)) return false;
  peer.batch = &take_slot(peer);
  peer.batch->batch_limit = kBatchBytesMost;
  with_batch.push_back(&peer);
  return true;
}

void WireFabric::State::put_behind(Send& batch, Payload& payload) {
  batch.payload_bytes = payload.size();
  if (!copies_payloads) {
    // What is sent from where it lies has to stay there.
    batch.payload = payload.take();
    return;
  }
  batch.batch_limit = std::min(batch.batch_bytes + kBatchBytesBehind, kBatchBytesMost);
  std::byte* to = batch.heads + kFrameHeadBytes + batch.batch_limit;
  for (const ByteView part : payload.parts()) to = std::copy(part.begin(), part.end(), to);
}

// False while libfabric has no room for it.
bool WireFabric::State::send_batch(Peer& peer) {
  Send& batch = *peer.batch;
  const ssize_t status = post_send(peer, batch);
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

ssize_t WireFabric::State::post_send(Peer& peer, Send& batch) {
  std::byte* const body = batch.heads + kFrameHeadBytes;
  const bool is_copied = copies_payloads && batch.payload_bytes != 0;
  const std::size_t bytes = is_copied ? batch.batch_limit : batch.batch_bytes;
  std::fill(body + batch.batch_bytes, body + bytes, std::byte{});
  const ByteView payload = is_copied ? ByteView(body + bytes, batch.payload_bytes) : batch.payload;
  FrameHead head{own.id, peer.next_out, static_cast<std::uint16_t>(bytes)};
  head.accepted = static_cast<std::uint32_t>(peer.next_in);
  head.padding_bytes = padding.of(kFrameHeadBytes + bytes + payload.size());
  seal_frame(peer.outgoing, head, batch.heads, payload, peer.prove_payloads);
  std::array<iovec, 3> parts{};
  std::array<void*, 3> descriptors = {batch.descriptor, nullptr, nullptr};
  parts[0] = {batch.heads, kFrameHeadBytes + bytes};
  if (is_copied) {
    std::fill_n(body + bytes + batch.payload_bytes, head.padding_bytes, std::byte{});
    parts[0].iov_len += batch.payload_bytes + head.padding_bytes;
  }
  parts[1] = {batch.payload.data(), batch.payload.size()};
  parts[2] = {zeros.get(), head.padding_bytes};
  fi_msg message{};
  message.msg_iov = parts.data();
  message.desc = descriptors.data();
  message.iov_count = batch.payload.empty() ? 1 : head.padding_bytes == 0 ? 2 : 3;
  message.addr = peer.where;
  message.context = &batch.operation.context;
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
