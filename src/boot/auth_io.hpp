// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "boot/auth.hpp"

namespace oriel::boot {

enum class SocketKind : std::uint8_t {
  stream,     ///< TCP, or a unix stream socket
  seqpacket,  ///< a unix SOCK_SEQPACKET socket: each handshake message is one packet
};

/// Both sides of the handshake of auth.hpp over a connected, non-blocking socket; the caller goes
/// on to own `fd`. Neither reads a byte past the handshake. Descriptors that an unproven peer
/// attaches are never received. An error means that the peer has not proved the key, or not in
/// time: close.
Task<Status> prove_as_initiator(EventLoop& loop, int fd, SocketKind kind, AuthInitiator initiator,
                                Deadline deadline);

/// Yields what the initiator claims, which its proof covers; the caller checks that it fits.
Task<Result<AuthClaim>> prove_as_responder(EventLoop& loop, int fd, SocketKind kind,
                                           KeyPurpose purpose, std::uint64_t realm, Key key,
                                           Deadline deadline);

}  // namespace oriel::boot
