// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "oriel/error.hpp"

#include "base/bytes.hpp"

namespace oriel::boot {

/// Kind of a frame. A frame on an authenticated stream is an 8-byte header (payload length, kind,
/// zeros) and the payload.
enum class FrameKind : std::uint8_t {
  message = 1,  ///< message of a group
  left = 2,     ///< ranks that have left regularly
  aborted = 3,  ///< rank that has aborted, and its error
  dead = 4,     ///< rank that has died, and how its death was seen
  stuck = 5,    ///< rank that has waited long for another rank, or no longer does
  // From the root service to a rank:
  root_host = 6,   ///< the rank in the root service's process
  root_peers = 7,  ///< addresses of the ranks to connect to
  root_error = 8,  ///< the rendezvous has failed
  note = 9,        ///< note from one rank to another, forwarded from link to link
};

struct Frame {
  FrameKind kind = FrameKind::message;
  Bytes payload;
};

inline constexpr std::size_t kFrameHeaderBytes = 8;
/// Limit of a message from a peer.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20;
/// Limit of any other frame.
inline constexpr std::size_t kMaxNoticeBytes = std::size_t{64} << 10;

/// Encodes one frame. Requires a payload within the limit of `kind`.
Bytes encode_frame(FrameKind kind, ByteView payload);

/// Splits a stream into frames. Buffers grow with the bytes that have arrived, not with the length
/// that a header announces.
class FrameReader {
 public:
  /// Appends to `out` the frames that `bytes` complete. After an error the stream is unusable.
  Status feed(ByteView bytes, std::vector<Frame>& out);

 private:
  Status check_header();

  std::array<std::byte, kFrameHeaderBytes> header_{};
  std::size_t header_have_ = 0;
  std::size_t length_ = 0;
  Frame frame_;
};

}  // namespace oriel::boot
