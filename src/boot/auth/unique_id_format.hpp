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

/// What every rank must hold to join a communicator: where the root service listens, which of its
/// communicators is meant, and the secret that proves membership. Whoever sees the 128 bytes can
/// join, so they travel over a channel that the user trusts.
struct UniqueId {
  static constexpr std::size_t kBytes = 128;
  using Encoded = std::array<std::byte, kBytes>;

  SocketAddress root;
  std::uint64_t number = 0;  ///< random; tells the communicators of one root apart
  Key secret;

  Encoded encode() const;
  /// Checks every field, the padding and a checksum, so that an id that was never made, or was cut
  /// or garbled on its way, is an invalid_argument that says what is wrong with it.
  static Result<UniqueId> decode(std::span<const std::byte, kBytes> bytes);
};

/// For errors about an id that is of no use any more.
inline constexpr const char* kUsedIdHint =
    "an id serves one communicator or one failed attempt, and expires when no rank has come for 10 "
    "minutes: make a new one";

/// Makes an id and has this process serve its rendezvous: starts the process's root service, or
/// adds to the running one. Local, does not block on the network, any thread.
/// The service forgets an id once all its ranks have joined, or `expiry` after its creation if no
/// rank has come by then.
Result<UniqueId> create_unique_id(const SocketOptions& options,
                                  Duration expiry = std::chrono::minutes(10));

}  // namespace oriel::boot
