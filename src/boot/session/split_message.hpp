// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "boot/auth/socket_address.hpp"

/// Encodes and decodes the messages of a split between the ranks of the parent.
namespace oriel::boot {

/// Message of a rank to all others of the parent.
struct SplitPlace {
  std::optional<std::int32_t> color;
  std::int32_t key = 0;
  std::uint64_t serial = 0;
  SocketAddress address;  ///< valid if the rank listens
};
Bytes encode(const SplitPlace& place);
/// Decodes a SplitPlace; returns ErrorCode::remote if it is malformed.
Result<SplitPlace> decode_split_place(ByteView bytes);

/// Text of a note: its sender cannot link to the other ranks of a child.
struct SplitFailure {
  std::uint64_t child = 0;  ///< the number of the child's session
  Error reason;
};
Bytes encode(const SplitFailure& failure);
/// Decodes a SplitFailure; returns ErrorCode::remote if it is malformed.
Result<SplitFailure> decode_split_failure(ByteView bytes);

}  // namespace oriel::boot
