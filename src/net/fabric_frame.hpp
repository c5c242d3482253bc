// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/bytes.hpp"
#include "boot/secret.hpp"
#include "net/fabric_address.hpp"
#include "net/wire_format.hpp"

/// A message of a fabric wire: NICs' messages (wire_format.hpp) behind a proof of who sent them.
///
///     16 bytes proof, 16 bytes payload proof or zeros, u32 magic, u16 head bytes, u16 kind,
///     u64 from, u64 sequence, u32 payload bytes, u32 reserved; the head; the payload
///
/// Of kind 0 it is one message, whose payload follows its head. Of kind 1 the head is a batch:
/// small messages with their payloads, each behind its length (u32), and there is no payload.
///
/// The proof is keyed SipHash-2-4 of 16 bytes over all that follows it up to the end of the head.
/// Its key is that of one direction between two ends: a keyed hash, with the communicator's key, of
/// the addresses of both, which contain fresh nonces. So a stranger who can connect to the port
/// can make no message, nor one end speak for another's, nor can a message be played back (the
/// sequence), sent back (the direction) or carried over into a later life of an end (the nonces).
///
/// The payload is covered only where an end asks for it. That is for networks on which somebody can
/// change what others send; who can only connect cannot splice bytes into another's connection. It
/// costs some 1.8 GB/s of a core at either side, which is less than what loopback carries.
namespace oriel::net {

inline constexpr std::size_t kFrameHeadBytes = 64;
inline constexpr std::size_t kBatchBytesMost = 1984;

struct FrameHead {
  std::uint64_t from = 0;
  std::uint64_t sequence = 0;
  std::uint16_t head_bytes = 0;  ///< of the NIC's message, or of the batch, that follow
  bool is_batch = false;
  std::uint32_t payload_bytes = 0;
};

/// The keys of messages from one end to another.
struct FrameKeys {
  boot::Key frame;
  boot::Key payload;  ///< another, so that no payload can be made whose proof is that of a frame
};
FrameKeys frame_keys(const boot::Key& secret, const FabricAddress& from, const FabricAddress& to);

/// A frame's head and the message's head, for the payload to follow. Writes to `to`, which has room
/// for kFrameHeadBytes and message_head.size(), at most kWireHeadBytesMost. The number of bytes.
std::size_t seal_frame(const FrameKeys& keys, std::uint64_t from, std::uint64_t sequence,
                       ByteView message_head, ByteView payload, bool prove_payload, std::byte* to);

/// Seals a batch of `bytes` that lies at frame + kFrameHeadBytes already.
void seal_batch(const FrameKeys& keys, std::uint64_t from, std::uint64_t sequence, std::byte* frame,
                std::size_t bytes);

/// The next message of a batch, which `batch` then no longer has; empty at its end, and if it is
/// none.
ByteView next_of_batch(ByteView& batch);

/// Who says to have sent these bytes, and their parts; nothing if they are no frame. Nothing is
/// proven yet.
std::optional<FrameHead> read_frame(ByteView bytes);

/// Whether the frame, which read_frame() has taken, was sealed with these keys.
bool is_proven(const FrameKeys& keys, ByteView bytes, const FrameHead& head, bool prove_payload);

}  // namespace oriel::net
