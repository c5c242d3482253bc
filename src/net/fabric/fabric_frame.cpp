// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_frame.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "net/wire/queue_setup.hpp"

namespace oriel::net {
namespace {

constexpr std::uint32_t kFrameMagic = 0x3346524f;  // ORF3
constexpr std::size_t kMacBytes = std::tuple_size_v<boot::ShortDigest>;

// Layout of the head, which has no gaps.
struct HeadLayout {
  boot::ShortDigest mac;
  boot::ShortDigest payload_mac;
  std::uint32_t magic;
  std::uint16_t batch_bytes;
  std::uint16_t is_padded;
  std::uint64_t from;
  std::uint64_t sequence;
  std::uint32_t payload_bytes;
  std::uint32_t accepted;
};
static_assert(sizeof(HeadLayout) == kFrameHeadBytes && alignof(HeadLayout) == 8);

boot::ShortDigest payload_mac(const boot::Key& key, ByteView payload, bool authenticate) {
  return authenticate ? boot::short_keyed_hash(key, payload) : boot::ShortDigest{};
}

}  // namespace

FrameKeys frame_keys(const boot::Key& secret, const FabricAddress& from, const FabricAddress& to) {
  const Bytes sender = encode(from);
  const Bytes receiver = encode(to);
  const auto derive = [&](std::string_view label) {
    return boot::Key(boot::keyed_hash(secret, {std::as_bytes(std::span(label)), sender, receiver}));
  };
  return {derive("oriel fabric frame v1"), derive("oriel fabric payload v1")};
}

void seal_frame(const FrameKeys& keys, const FrameHead& head, std::byte* frame, ByteView payload,
                bool authenticate_payload) {
  HeadLayout layout{};
  layout.payload_mac = payload_mac(keys.payload, payload, authenticate_payload);
  layout.magic = kFrameMagic;
  layout.batch_bytes = head.batch_bytes;
  layout.from = head.from;
  layout.sequence = head.sequence;
  layout.payload_bytes = static_cast<std::uint32_t>(payload.size());
  layout.accepted = head.accepted;
  layout.is_padded = head.padding_bytes != 0 ? 1 : 0;
  std::memcpy(frame, &layout, sizeof layout);
  const std::size_t sealed = kFrameHeadBytes + head.batch_bytes - kMacBytes;
  layout.mac = boot::short_keyed_hash(keys.frame, {frame + kMacBytes, sealed});
  std::copy(layout.mac.begin(), layout.mac.end(), frame);
}

BatchMessage next_of_batch(ByteView& batch) {
  std::uint32_t length = 0;
  if (batch.size() < sizeof length) return {};
  std::memcpy(&length, batch.data(), sizeof length);
  const std::uint32_t bytes = length & ~kPayloadBehind;
  const ByteView left = batch.subspan(sizeof length);
  if (bytes > left.size()) return {};
  batch = left.subspan(bytes);
  return {left.first(bytes), (length & kPayloadBehind) != 0};
}

bool is_at_end(ByteView batch) {
  return std::all_of(batch.begin(), batch.end(), [](std::byte one) { return one == std::byte{}; });
}

std::optional<FrameHead> read_frame(ByteView bytes) {
  HeadLayout layout{};
  if (bytes.size() < sizeof layout) return std::nullopt;
  std::memcpy(&layout, bytes.data(), sizeof layout);
  if (layout.magic != kFrameMagic || layout.is_padded > 1) return std::nullopt;
  if (layout.batch_bytes > kBatchBytesMost || layout.payload_bytes > kPieceBytesMost) {
    return std::nullopt;
  }
  const std::size_t meant = sizeof layout + layout.batch_bytes + layout.payload_bytes;
  if (bytes.size() < meant || (bytes.size() > meant) != (layout.is_padded == 1)) {
    return std::nullopt;
  }
  return FrameHead{layout.from,          layout.sequence, layout.batch_bytes,
                   layout.payload_bytes, layout.accepted, bytes.size() - meant};
}

bool is_authenticated(const FrameKeys& keys, ByteView bytes, const FrameHead& head,
                      bool authenticate_payload) {
  const std::size_t sealed = kFrameHeadBytes + head.batch_bytes;
  const auto mac = boot::short_keyed_hash(keys.frame, bytes.subspan(kMacBytes, sealed - kMacBytes));
  if (!boot::equal_in_constant_time(mac, bytes.first(kMacBytes))) return false;
  const ByteView body = bytes.subspan(sealed, head.payload_bytes);
  const auto payload = payload_mac(keys.payload, body, authenticate_payload);
  return boot::equal_in_constant_time(payload, bytes.subspan(kMacBytes, kMacBytes));
}

}  // namespace oriel::net
