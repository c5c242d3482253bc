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

/// What travels on a proven stream: an 8-byte header (length of the payload, kind, zeros) and the
/// payload.
enum class FrameKind : std::uint8_t {
  message = 1,  ///< of a group
  left = 2,     ///< ranks that have left in order
  aborted = 3,  ///< a rank that has given up, and its error
  dead = 4,     ///< a rank that has died, and how that was seen
  stuck = 5,    ///< a rank that has waited long for another one, or no longer does
  // From the root service to a rank:
  root_host = 6,   ///< which rank lives in the root service's process
  root_peers = 7,  ///< the addresses of the ranks to connect to
  root_error = 8,  ///< the rendezvous has failed
  note = 9,        ///< of one rank for another, on its way from link to link
};

struct Frame {
  FrameKind kind = FrameKind::message;
  Bytes payload;
};

inline constexpr std::size_t kFrameHeaderBytes = 8;
/// The longest message a peer may send.
inline constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20;
/// The longest frame of any other kind.
inline constexpr std::size_t kMaxNoticeBytes = std::size_t{64} << 10;

/// Requires a payload within the limit of its kind.
Bytes encode_frame(FrameKind kind, ByteView payload);

/// Cuts a stream into frames. Buffers grow with the bytes that have arrived, not with the length
/// that a header announces.
class FrameReader {
 public:
  /// Appends the frames that `bytes` complete to `out`. After an error the stream is unusable.
  Status feed(ByteView bytes, std::vector<Frame>& out);

 private:
  Status check_header();

  std::array<std::byte, kFrameHeaderBytes> header_{};
  std::size_t header_have_ = 0;
  std::size_t length_ = 0;
  Frame frame_;
};

}  // namespace oriel::boot
