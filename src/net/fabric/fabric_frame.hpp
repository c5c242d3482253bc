// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/bytes.hpp"
#include "boot/auth/secret.hpp"
#include "net/fabric/fabric_address.hpp"
#include "net/wire/wire_format.hpp"

/// Frame of a fabric wire: a MAC of the sender, then messages of NICs (wire_format.hpp):
///
///     16 bytes MAC, 16 bytes payload MAC or zeros;
///     u32 magic, u16 batch bytes, u16 1 if padded,
///     u64 from, u64 sequence, u32 payload bytes, u32 accepted;
///     the batch; the payload; padding
///
/// `accepted` counts, modulo 2^32, the frames taken from the other direction. By it an end
/// distinguishes a peer that has not yet received a message from one that does not answer it.
///
/// The batch holds messages one after the other, each after its length (u32). Small messages
/// include their payload. One message may be longer: its length has the bit kPayloadBehind, the
/// batch has only its head, and its payload follows the batch. So a put and the word after it leave
/// in one frame. Zeros may fill the batch, so that the payload's place is known before the batch is
/// complete. Padding follows the payload where a provider needs longer messages.
///
/// The MAC is keyed SipHash-2-4 of 16 bytes over all bytes after it, up to the end of the batch.
/// Each direction between two ends has its own key. The key is a keyed hash, with the
/// communicator's key, of both addresses, which contain fresh nonces. So an unauthenticated peer
/// who can connect to the port can forge no message, and a frame of one sender is not valid as
/// another's. Nor can a frame be replayed (the sequence), reflected (the direction) or reused in a
/// later life of an end (the nonces).
///
/// The payload is covered only if an end asks for it. That is for networks on which somebody can
/// change what others send. A process that can only connect cannot inject bytes into another's
/// connection. Payload MACs cost a hash of all bytes of the payload on either side. A core of an
/// AMD EPYC hashes 1.8 to 3.6 GB/s (docs/notes/wire.md).
namespace oriel::net {

inline constexpr std::size_t kFrameHeadBytes = 64;
inline constexpr std::size_t kBatchBytesMost = 1984;
/// Flag in the length of the message whose payload follows the batch.
inline constexpr std::uint32_t kPayloadBehind = std::uint32_t{1} << 31;

struct FrameHead {
  std::uint64_t from = 0;
  std::uint64_t sequence = 0;
  std::uint16_t batch_bytes = 0;    ///< bytes of the batch after the head
  std::uint32_t payload_bytes = 0;  ///< bytes of the payload after the batch
  std::uint32_t accepted = 0;       ///< frames of the other direction, taken in order or given up
  std::size_t padding_bytes = 0;    ///< meaningless bytes after the payload
};

/// Keys of messages from one end to another.
struct FrameKeys {
  boot::Key frame;
  boot::Key payload;  ///< separate, so that no payload MAC is valid as a frame MAC
};
FrameKeys frame_keys(const boot::Key& secret, const FabricAddress& from, const FabricAddress& to);

/// Seals a frame whose batch is already at frame + kFrameHeadBytes. `head.payload_bytes` is
/// ignored: the length of `payload` counts. Only whether `head.padding_bytes` is 0 enters the
/// frame.
void seal_frame(const FrameKeys& keys, const FrameHead& head, std::byte* frame, ByteView payload,
                bool authenticate_payload);

struct BatchMessage {
  ByteView bytes;
  bool has_payload_behind = false;  ///< then `bytes` are only its head
};
/// Returns the next message and removes it from `batch`. Returns empty bytes at the end of the
/// batch, and if the batch is malformed.
BatchMessage next_of_batch(ByteView& batch);
/// Returns whether the rest of a batch is only zeros, so that no message is left.
bool is_at_end(ByteView batch);

/// Parses a frame's head; returns nothing if the bytes are no frame. Proves nothing: `from` is a
/// claim.
std::optional<FrameHead> read_frame(ByteView bytes);

/// Returns whether the frame was sealed with these keys. `head` must be read_frame()'s result for
/// `bytes`.
bool is_authenticated(const FrameKeys& keys, ByteView bytes, const FrameHead& head,
                      bool authenticate_payload);

}  // namespace oriel::net
