// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/fd.hpp"
#include "boot/auth/socket_address.hpp"

/// Non-blocking, close-on-exec sockets, of which forked children keep no copies, and the calls on
/// them, without a wait anywhere.
namespace oriel::boot {

struct Listener {
  OwnedFd fd;
  SocketAddress address;  ///< with the port that the system chose
};

/// Listens on `local` (port 0 for any).
Result<Listener> listen_tcp(const SocketAddress& local);

/// A socket that is connecting to `remote`; writable once that has ended, see connect_outcome().
Result<OwnedFd> start_connect(const SocketAddress& remote);
/// Success, or why connecting failed.
Status connect_outcome(int fd, const SocketAddress& remote);

/// The next connection; an invalid OwnedFd if none is waiting. Fails for want of descriptors or
/// memory, not for a client that has gone again.
Result<OwnedFd> accept_one(int listener_fd);

/// Where this end of a connected socket is.
Result<SocketAddress> local_address(int fd);

/// What a read or write that does not wait came to.
struct IoOutcome {
  std::size_t bytes = 0;
  bool would_block = false;
  bool closed = false;  ///< the peer has closed or reset the connection
  bool silent = false;  ///< `closed` because nothing comes from its host any more
};
Result<IoOutcome> read_some(int fd, std::span<std::byte> out);
Result<IoOutcome> write_some(int fd, std::span<const ByteView> buffers);

/// Whether something has come from the other end's host so lately that it can answer: later than
/// the last sign of life of a connection that is found to be silent now.
bool is_heard(int fd);

/// How much of what was written the kernel has not sent yet; 0 if it does not say.
std::size_t unsent_bytes(int fd);

}  // namespace oriel::boot
