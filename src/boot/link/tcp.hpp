// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/fd.hpp"
#include "boot/auth/socket_address.hpp"

/// Non-blocking, close-on-exec TCP sockets. Forked children keep no copies of them. No call here
/// waits.
namespace oriel::boot {

struct Listener {
  OwnedFd fd;
  SocketAddress address;  ///< includes the port chosen by the kernel
};

/// Listens on `local`; port 0 lets the kernel choose.
Result<Listener> listen_tcp(const SocketAddress& local);

/// Returns a socket that is connecting to `remote`. Once the socket is writable, call
/// connect_outcome().
Result<OwnedFd> start_connect(const SocketAddress& remote);
/// Returns success, or why connecting failed.
Status connect_outcome(int fd, const SocketAddress& remote);

/// Returns the next connection; an invalid OwnedFd if none is waiting. Fails for lack of
/// descriptors or memory, but not if the client has already disconnected.
Result<OwnedFd> accept_one(int listener_fd);

/// Returns the local address of a connected socket.
Result<SocketAddress> local_address(int fd);

/// Outcome of a non-blocking read or write.
struct IoOutcome {
  std::size_t bytes = 0;
  bool would_block = false;
  bool closed = false;  ///< the peer has closed or reset the connection
  bool silent = false;  ///< `closed` is set because the peer's host does not answer
};
Result<IoOutcome> read_some(int fd, std::span<std::byte> out);
Result<IoOutcome> write_some(int fd, std::span<const ByteView> buffers);

/// Returns whether the peer's host has sent data or an ACK recently. Recently means later than on
/// any connection that times out now because its host fell silent.
bool has_answered(int fd);

/// Returns the number of written bytes that the kernel has not sent yet; 0 if unknown.
std::size_t unsent_bytes(int fd);

}  // namespace oriel::boot
