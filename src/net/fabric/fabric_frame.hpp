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

/// A message of a fabric wire: NICs' messages (wire_format.hpp) behind a proof of who sent them.
///
///     16 bytes proof, 16 bytes payload proof or zeros, u32 magic, u16 batch bytes, u16 1 if
///     padded, u64 from, u64 sequence, u32 payload bytes, u32 accepted; the batch; the payload;
///     padding
///
/// `accepted` counts, modulo 2^32, what has come the other way: so an end can tell a peer that has
/// not yet got something from one that does not answer it.
///
/// In the batch lies one message behind the other, each behind its length (u32). Those that are
/// small have their payload with them. One may be longer: its length says so (kPayloadBehind), only
/// its head is in the batch, and its payload follows the batch. So what is put and the word behind
/// it go together. Zeros may fill the batch, so that the payload's place is known before the
/// batch's end. What follows the payload is nobody's: some providers want longer messages.
///
/// The proof is keyed SipHash-2-4 of 16 bytes over all that follows it up to the end of the batch.
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
/// Set in the length of a message whose payload is what follows the batch.
inline constexpr std::uint32_t kPayloadBehind = std::uint32_t{1} << 31;

struct FrameHead {
  std::uint64_t from = 0;
  std::uint64_t sequence = 0;
  std::uint16_t batch_bytes = 0;    ///< that follow
  std::uint32_t payload_bytes = 0;  ///< that follow these
  std::uint32_t accepted = 0;       ///< frames of the other direction, or given up
  std::size_t padding_bytes = 0;    ///< that follow the payload, of no meaning
};

/// The keys of messages from one end to another.
struct FrameKeys {
  boot::Key frame;
  boot::Key payload;  ///< another, so that no payload can be made whose proof is that of a frame
};
FrameKeys frame_keys(const boot::Key& secret, const FabricAddress& from, const FabricAddress& to);

/// Seals a batch that lies at frame + kFrameHeadBytes already, for the payload, whose length the
/// head need not say, and the padding to follow.
void seal_frame(const FrameKeys& keys, const FrameHead& head, std::byte* frame, ByteView payload,
                bool prove_payload);

struct BatchMessage {
  ByteView bytes;
  bool has_payload_behind = false;  ///< and these are its head
};
/// The next message of a batch, which `batch` then no longer has; empty at its end, and if it is
/// none.
BatchMessage next_of_batch(ByteView& batch);
/// Whether no message is in what is left of a batch, which zeros may fill.
bool is_at_end(ByteView batch);

/// Who says to have sent these bytes, and their parts; nothing if they are no frame. Nothing is
/// proven yet.
std::optional<FrameHead> read_frame(ByteView bytes);

/// Whether the frame, which read_frame() has taken, was sealed with these keys.
bool is_proven(const FrameKeys& keys, ByteView bytes, const FrameHead& head, bool prove_payload);

}  // namespace oriel::net
