// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "boot/auth/secret.hpp"
#include "boot/auth/socket_address.hpp"

namespace oriel::boot {

/// Data that every rank needs to join a communicator: address of the root service, number of the
/// communicator, and the secret that proves membership. Anyone who reads the 128 bytes can join, so
/// the user must pass them over a trusted channel.
struct UniqueId {
  static constexpr std::size_t kBytes = 128;
  using Encoded = std::array<std::byte, kBytes>;

  SocketAddress root;
  std::uint64_t number = 0;  ///< random; identifies the communicator at its root service
  Key secret;

  Encoded encode() const;
  /// Checks every field, the padding and a checksum. If the id was never made, or was cut or
  /// garbled, the invalid_argument error says what is wrong.
  static Result<UniqueId> decode(std::span<const std::byte, kBytes> bytes);
};

/// Hint for errors about an id that can no longer be used.
inline constexpr const char* kUsedIdHint =
    "an id serves one communicator or one failed attempt, and expires when no rank has come for 10 "
    "minutes: make a new one";

/// Creates an id and serves its rendezvous in this process: starts the root service, or adds the id
/// to the running one. Local, does not block on the network, thread-safe. The service forgets the
/// id once all its ranks have joined, or after `expiry` if no rank has come by then.
Result<UniqueId> create_unique_id(const SocketOptions& options,
                                  Duration expiry = std::chrono::minutes(10));

}  // namespace oriel::boot
