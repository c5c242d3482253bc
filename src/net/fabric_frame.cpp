// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric_frame.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "net/queue_setup.hpp"

namespace oriel::net {
namespace {

constexpr std::uint32_t kFrameMagic = 0x4d46524f;  // ORFM
constexpr std::uint16_t kBatch = 1;
constexpr std::size_t kProofBytes = std::tuple_size_v<boot::ShortDigest>;

// In the order of the frame, which has no gaps.
struct HeadLayout {
  boot::ShortDigest proof;
  boot::ShortDigest payload_proof;
  std::uint32_t magic;
  std::uint16_t head_bytes;
  std::uint16_t kind;
  std::uint64_t from;
  std::uint64_t sequence;
  std::uint32_t payload_bytes;
  std::uint32_t reserved;
};
static_assert(sizeof(HeadLayout) == kFrameHeadBytes && alignof(HeadLayout) == 8);

boot::ShortDigest payload_proof(const boot::Key& key, ByteView payload, bool prove) {
  return prove ? boot::short_keyed_hash(key, payload) : boot::ShortDigest{};
}

// What follows the head at `to` is there already. The bytes up to its end.
std::size_t seal(const FrameKeys& keys, HeadLayout& layout, std::byte* to) {
  layout.magic = kFrameMagic;
  const std::size_t bytes = kFrameHeadBytes + layout.head_bytes;
  std::memcpy(to, &layout, sizeof layout);
  layout.proof = boot::short_keyed_hash(keys.frame, {to + kProofBytes, bytes - kProofBytes});
  std::copy(layout.proof.begin(), layout.proof.end(), to);
  return bytes;
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

std::size_t seal_frame(const FrameKeys& keys, std::uint64_t from, std::uint64_t sequence,
                       ByteView message_head, ByteView payload, bool prove_payload, std::byte* to) {
  HeadLayout layout{};
  layout.payload_proof = payload_proof(keys.payload, payload, prove_payload);
  layout.head_bytes = static_cast<std::uint16_t>(message_head.size());
  layout.from = from;
  layout.sequence = sequence;
  layout.payload_bytes = static_cast<std::uint32_t>(payload.size());
  std::copy(message_head.begin(), message_head.end(), to + kFrameHeadBytes);
  return seal(keys, layout, to);
}

void seal_batch(const FrameKeys& keys, std::uint64_t from, std::uint64_t sequence, std::byte* frame,
                std::size_t bytes) {
  HeadLayout layout{};  // payloads are inside what is proven
  layout.kind = kBatch;
  layout.head_bytes = static_cast<std::uint16_t>(bytes);
  layout.from = from;
  layout.sequence = sequence;
  seal(keys, layout, frame);
}

ByteView next_of_batch(ByteView& batch) {
  std::uint32_t bytes = 0;
  if (batch.size() < sizeof bytes) return {};
  std::memcpy(&bytes, batch.data(), sizeof bytes);
  const ByteView left = batch.subspan(sizeof bytes);
  if (bytes > left.size()) return {};
  batch = left.subspan(bytes);
  return left.first(bytes);
}

std::optional<FrameHead> read_frame(ByteView bytes) {
  HeadLayout layout{};
  if (bytes.size() < sizeof layout) return std::nullopt;
  std::memcpy(&layout, bytes.data(), sizeof layout);
  if (layout.magic != kFrameMagic || layout.kind > kBatch || layout.reserved != 0) {
    return std::nullopt;
  }
  const bool is_batch = layout.kind == kBatch;
  if (is_batch && layout.payload_bytes != 0) return std::nullopt;
  if (layout.head_bytes > (is_batch ? kBatchBytesMost : kWireHeadBytesMost) ||
      layout.payload_bytes > kPieceBytesMost ||
      bytes.size() != sizeof layout + layout.head_bytes + layout.payload_bytes) {
    return std::nullopt;
  }
  return FrameHead{layout.from, layout.sequence, layout.head_bytes, is_batch, layout.payload_bytes};
}

bool is_proven(const FrameKeys& keys, ByteView bytes, const FrameHead& head, bool prove_payload) {
  const std::size_t sealed = kFrameHeadBytes + head.head_bytes;
  const auto proof =
      boot::short_keyed_hash(keys.frame, bytes.subspan(kProofBytes, sealed - kProofBytes));
  if (!boot::equal_in_constant_time(proof, bytes.first(kProofBytes))) return false;
  const bool has_more = prove_payload && !head.is_batch;
  const auto payload = payload_proof(keys.payload, bytes.subspan(sealed), has_more);
  return boot::equal_in_constant_time(payload, bytes.subspan(kProofBytes, kProofBytes));
}

}  // namespace oriel::net
